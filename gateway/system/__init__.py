# The operating system's small things.
#
#   cores.py           how many cores this process may use
#   process_exit.py   the end of a process, whatever its threads do
#   files.py           changes of files, directories' entries that survive a power cut, files for one process alone
#   shared_memory.py   memory that several processes map, and a lock for it
#   sockets.py         options of clients' sockets, their origin, addresses as text
#   hosts.py           the host names that a request to the admin server may give (DNS rebinding)
