# What all command lines share.
#
#   arguments.py   the parser: wrong words are answered with the one that may be meant, help ends with examples
#   running.py     the exit code, also where output can't be written
