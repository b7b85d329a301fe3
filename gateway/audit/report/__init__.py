# The report and the ranking.
#
#   command.py, top_command.py  options and files
#   report.py                   what the page says, asked of the records
#   top.py                      who had most of something
#   page.py, plots.py           HTML and SVG: pure
