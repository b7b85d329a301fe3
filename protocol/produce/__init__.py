# Produce: nearly all requests and answers by the fast form, all others step by step.
#
# produce_fast.pyx      the form of nearly all requests and answers, read fast; only compiled
# produce_request.py    skim, strip
# produce_response.py   skim, local, merge, rewrite_endpoints
