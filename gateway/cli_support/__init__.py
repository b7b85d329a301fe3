# What all command lines share.
#
#   arguments.py   the parser: wrong words are answered with the one that may be meant, help ends with examples
#   suggest.py     "Did you mean …?"
