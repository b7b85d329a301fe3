# Commands that ask a running gateway's admin server and show the answer to people.
