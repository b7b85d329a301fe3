# The names that the gateways' own topics have unless the configuration says otherwise. Clients can't produce to them
# through a gateway; docs/security.md says who needs which right on them.

from typing import Final

POLICIES: Final = "__produce_gateway_policies"  # changes made at run time
RESOURCE_USAGE: Final = "__produce_gateway_resource_usage"  # what gateways tell each other
USAGE: Final = "__produce_gateway_usage"  # the usage log
VOLUMES: Final = "__produce_gateway_volumes"  # what volume agents see
