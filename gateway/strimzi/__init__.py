# `produce-gateway import-strimzi FILE`: the settings of a cluster's Strimzi quotas plugin, printed as our YAML.
#
#   command.py          the command: reads a file, prints YAML, and on standard error what it can't take over
#   plugin_settings.py  the plugin's properties by their names
#   kafka_resource.py   a Kafka resource -> these properties, and the brokers' listeners
#   yaml_writer.py      these properties -> YAML
#
# In the distribution produce-gateway-extras (extras/pyproject.toml). Nothing of the gateway imports it.
