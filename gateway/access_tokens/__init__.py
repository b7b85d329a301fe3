# Tokens of the admin port (RFC 6750).
#
#   tokens.py   how they and a file of them look, and how one is made
#   roles.py    viewer, operator, admin
