# What is simulated.
#
#     network.py             connections, and what the product sees of sockets
#     wire.py                the few APIs that models speak, written anew
#     wire_transactions.py   those of transactions
#     sasl.py                PLAIN and SCRAM, and what a client says first
#     cluster.py             the model of a Kafka cluster
#     coordinator.py         its coordinators of transactions
#     librdkafka.py          the gateways' own clients
#     clients.py             the models of producers
#     transactional.py       those with transactions
#     consumers.py           a model of consumers
