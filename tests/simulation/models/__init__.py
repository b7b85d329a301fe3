# What is simulated.
#
#     network.py      connections, and what the product sees of sockets
#     wire.py         the few APIs that models speak, written anew
#     cluster.py      the model of a Kafka cluster
#     librdkafka.py   the gateways' own clients
#     clients.py      the models of producers
