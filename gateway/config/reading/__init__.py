# From the file and the environment to the value, or to lines that say what is wrong.
#
#   keys.py            which keys there are, and of which types
#   environment.py     variables of the environment, which stand before the file
#   secret_files.py    secrets that stand in files of their own
#   loading.py         from the file to the value, or to what is wrong
#   examining.py       all that is wrong at once, also by stages outside of this package
