# Commands that make credentials.
#
#   token.py         a token of the admin port, and its line for admin.token_file
#   scram_record.py  a user's line for the credentials file
