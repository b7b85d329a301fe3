# The report and the ranking.
#
#   command.py, top_command.py  options and files
#   facts.py                    what the page says: types
#   report.py                   the same, asked of the records
#   top.py                      who had most of something
#   breakdowns.py               the same of groups, brokers, episodes, levels, the time before
#   downloads.py                the page's data as CSV within it: pure
#   page.py, plots.py           HTML and SVG: pure
