# The gateway's own clients of Kafka: how a cluster is reached, asked, and where the gateways' own topics live in it.
#
#   topic_names.py       the default names of the internal topics
#   internal_topic.py    one such topic: created where it is missing, looked up, judged, followed by its id
#   topic_consumer.py    the consumer of such a topic
#   client_files.py      clients made anew once the files of their certificates have changed
#   describe.py          topics described by librdkafka, through the death of a controller
#   access.py            librdkafka's properties -> how to reach and trust a broker
#   oauthbearer.py       tokens for OAUTHBEARER: from an issuer, kept and renewed
#   sasl.py              what a client says in each mechanism of SASL
#   client.py            requests that librdkafka doesn't have, by connections of our own
#   reach.py             whether brokers can be reached and trusted, and what is wrong where not
#   property_text.py     a property's text, of a value that YAML gives
#   java_properties.py   a Java client's properties file -> librdkafka's properties
#
# Knows no policy, no quota and no volume: who asks knows what the answer means.
