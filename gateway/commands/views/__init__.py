# Commands that show one response of a running gateway: status, clients, connections, peers, history, explain, topics,
# top; and reload.
#
#   commands.py  each with its path, its options and its examples
#   state.py, explain.py, topics.py
#                what they print
