# Whole gateways under simulated time: docs/simulation.md. The product's control processes and workers run as they are;
# what they stand on is simulated, and an independent judge compares what clients, brokers and accounts say.
#
#     clock.py        time, chance and order; blocking code in greenlets
#     models/         what is simulated: the network, a Kafka cluster, producers, the gateways' own clients
#     processes.py    gateways: control, workers, the channel between them, their ends
#     judge.py        what must not be
#     asking.py       explain and /metrics beside what clients were told
#     strangers.py    connections that send what the hostile suites send
#     world.py        one world from its seed: plan, faults, end
#     minimising.py   a failing plan cut down, and the line that makes it a test
#     mutations.py    the product broken on purpose, for the judge to see
