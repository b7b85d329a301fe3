# Fetch, for limits on what is read.
#
# fetch_request.py    how much a Fetch may ask for, changed in place
# fetch_response.py   how many bytes of records each partition of an answer has
