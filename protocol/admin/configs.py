# DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: the messages, and how one is divided between the broker and
# a gateway that keeps keys of its own (limits of a topic, say) which no broker knows.
#
# A broker refuses a resource with a key that it doesn't know, so our keys are taken out before it sees a change; and it
# alone knows who may change what, so it is asked first, by a probe. Its results and ours become one answer in the
# order of the request, as the broker itself would give it. It refuses to know which keys are ours, what their values
# mean and where they are kept: callers say so.
#
# Measured with Kafka 4.1, tests/integration/admin_apis/test_admin_codec.py has it:
# - A probe is IncrementalAlterConfigs with validate_only and no operation: error 0 allowed, 29 (topic) or 31 (broker)
#   denied, 3 unknown topic, 42 not this broker's.
# - DescribeConfigs answers an unknown key with no row, and an empty list of keys, like null, with all rows. So our keys
#   needn't be taken out of a list of keys, and must not where nothing is left.
# - AlterConfigs replaces: what isn't named is deleted. It is forwarded even if nothing but our keys was in it.
#
# Specs: KIP-133, KIP-226 (synonyms), KIP-339 (incremental), KIP-569 (types, documentation); ConfigAdminManager.scala
# for what a broker refuses before it looks at keys.

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from typing import Annotated, Any, Generic, NamedTuple, TypeAlias, TypeVar

from protocol import api
from protocol.message_codec import ApiCodec, ErrorText, Int8, Int16, Int32, Since, Text

# Resource types.
TOPIC = 2
BROKER = 4  # name "": the defaults of all brokers
BROKER_LOGGER = 8
CLIENT_METRICS = 16
GROUP = 32

# Operations.
SET = 0
DELETE = 1
APPEND = 2
SUBTRACT = 3

# Where a value comes from.
UNKNOWN_SOURCE = 0
DYNAMIC_TOPIC_CONFIG = 1
DYNAMIC_BROKER_CONFIG = 2
DYNAMIC_DEFAULT_BROKER_CONFIG = 3
STATIC_BROKER_CONFIG = 4
DEFAULT_CONFIG = 5
DYNAMIC_BROKER_LOGGER_CONFIG = 6
CLIENT_METRICS_CONFIG = 7
GROUP_CONFIG = 8

# Types of values.
UNKNOWN_TYPE = 0
BOOLEAN = 1
STRING = 2
INT = 3
SHORT = 4
LONG = 5
DOUBLE = 6
LIST = 7
CLASS = 8
PASSWORD = 9

_UNKNOWN_SERVER_ERROR = api.ERROR_CODES["UNKNOWN_SERVER_ERROR"]
_INVALID_CONFIG = api.ERROR_CODES["INVALID_CONFIG"]
_INVALID_REQUEST = api.ERROR_CODES["INVALID_REQUEST"]
_OPERATIONS = {SET: "SET", DELETE: "DELETE", APPEND: "APPEND", SUBTRACT: "SUBTRACT"}


# --- DescribeConfigs --------------------------------------------------------------------------------------------------


class DescribeConfigsResource(NamedTuple):
    resource_type: Int8
    resource_name: Text
    configuration_keys: tuple[Text, ...] | None  # None and () are all

    def requests_key(self, key: str) -> bool:
        return not self.configuration_keys or key in self.configuration_keys


class DescribeConfigsRequest(NamedTuple):
    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: bool = False
    include_documentation: Annotated[bool, Since(3)] = False


class ConfigSynonym(NamedTuple):
    """One of the places where a value could have come from, the deciding one first."""

    name: Text
    value: Text | None
    source: Int8


class DescribedConfig(NamedTuple):
    """A row of DescribeConfigs. `value` is None for a sensitive one."""

    name: Text
    value: Text | None
    read_only: bool = False
    config_source: Int8 = UNKNOWN_SOURCE
    is_sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    config_type: Annotated[Int8, Since(3)] = UNKNOWN_TYPE
    documentation: Annotated[ErrorText | None, Since(3)] = None


class DescribeConfigsResult(NamedTuple):
    error_code: Int16
    error_message: ErrorText | None
    resource_type: Int8
    resource_name: Text
    configs: tuple[DescribedConfig, ...] = ()


class DescribeConfigsResponse(NamedTuple):
    throttle_time_ms: Int32
    results: tuple[DescribeConfigsResult, ...]


# --- AlterConfigs, IncrementalAlterConfigs ----------------------------------------------------------------------------


class AlterableConfig(NamedTuple):
    name: Text
    value: Text | None


class AlterConfigsResource(NamedTuple):
    resource_type: Int8
    resource_name: Text
    configs: tuple[AlterableConfig, ...]


class AlterConfigsRequest(NamedTuple):
    """Replaces all values of each resource."""

    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False


class ConfigOperation(NamedTuple):
    name: Text
    config_operation: Int8
    value: Text | None


class IncrementalAlterConfigsResource(NamedTuple):
    resource_type: Int8
    resource_name: Text
    configs: tuple[ConfigOperation, ...]


class IncrementalAlterConfigsRequest(NamedTuple):
    resources: tuple[IncrementalAlterConfigsResource, ...]
    validate_only: bool = False


class AlterConfigsResult(NamedTuple):
    """The outcome for one resource, in the answers of both."""

    error_code: Int16
    error_message: ErrorText | None
    resource_type: Int8
    resource_name: Text


class AlterConfigsResponse(NamedTuple):
    throttle_time_ms: Int32
    responses: tuple[AlterConfigsResult, ...]


DESCRIBE_CONFIGS = ApiCodec(api.DESCRIBE_CONFIGS, 1, 4, DescribeConfigsRequest, DescribeConfigsResponse)
ALTER_CONFIGS = ApiCodec(api.ALTER_CONFIGS, 0, 2, AlterConfigsRequest, AlterConfigsResponse)
INCREMENTAL_ALTER_CONFIGS = ApiCodec(
    api.INCREMENTAL_ALTER_CONFIGS, 0, 1, IncrementalAlterConfigsRequest, AlterConfigsResponse
)


# --- ours and theirs --------------------------------------------------------------------------------------------------

ResourceKey: TypeAlias = tuple[int, str]  # resource type, resource name
IsOurs: TypeAlias = Callable[[int, str, str], bool]  # of resource type, resource name, config key
R = TypeVar("R", AlterConfigsRequest, IncrementalAlterConfigsRequest)


class ConfigSplit(NamedTuple, Generic[R]):
    """A change divided.

    `ours`: SET and DELETE (whose value is None) of our keys, no resource without one. `rest`: the broker's part, the
    same object as the request if nothing of ours is in it, None if nothing is left. `refused`: results of resources
    that are in neither, for they must not be changed by half.
    """

    ours: tuple[IncrementalAlterConfigsResource, ...]
    rest: R | None
    refused: tuple[AlterConfigsResult, ...]


def split_incremental(
    request: IncrementalAlterConfigsRequest, is_ours: IsOurs
) -> ConfigSplit[IncrementalAlterConfigsRequest]:
    """Take our keys out of an IncrementalAlterConfigs request.

    Refused, with all its other keys, is a resource that names one of ours twice, with APPEND or SUBTRACT, an operation
    that doesn't exist or SET without a value; and one that is there more than once, if any of these names one of ours.
    """
    return _split_request(request, is_ours, lambda *_: (), lambda operation: operation)


def split_replacing(
    request: AlterConfigsRequest, is_ours: IsOurs, held: Callable[[int, str], Collection[str]]
) -> ConfigSplit[AlterConfigsRequest]:
    """Take our keys out of an AlterConfigs request.

    Args:
        held: our keys that are set now for (resource type, resource name). Those that the request doesn't name become
            DELETE, for it replaces all.

    A resource stays in `rest` also with no key left, because then the broker shall delete all that it has. The same
    resources are refused as by `split_incremental`.
    """
    return _split_request(request, is_ours, held, lambda config: ConfigOperation(config.name, SET, config.value))


def _split_request(
    request: R,
    is_ours: IsOurs,
    held: Callable[[int, str], Collection[str]],
    as_operation: Callable[[Any], ConfigOperation],
) -> ConfigSplit[R]:
    replaces = isinstance(request, AlterConfigsRequest)
    touched = {
        resource[:2]
        for resource in request.resources
        if held(*resource[:2]) or any(is_ours(*resource[:2], config.name) for config in resource.configs)
    }
    if not touched:
        return ConfigSplit((), request, ())
    counts = Counter(resource[:2] for resource in request.resources)
    ours: list[IncrementalAlterConfigsResource] = []
    rest: list[Any] = []
    refused: dict[ResourceKey, AlterConfigsResult] = {}
    for resource in request.resources:
        key = resource[:2]
        if key not in touched:
            rest.append(resource)
            continue
        mine = [as_operation(config) for config in resource.configs if is_ours(*key, config.name)]
        named = [op.name for op in mine]
        reason = _duplicate_fault(counts[key], named) or _operation_fault(mine)
        if reason is not None:
            refused[key] = AlterConfigsResult(*reason, *key)
            continue
        mine = [op._replace(value=None) if op.config_operation == DELETE else op for op in mine]
        mine += [ConfigOperation(name, DELETE, None) for name in held(*key) if name not in named]
        ours.append(IncrementalAlterConfigsResource(*key, tuple(mine)))
        theirs = tuple(config for config in resource.configs if not is_ours(*key, config.name))
        if theirs or replaces:
            rest.append(resource._replace(configs=theirs))
    return ConfigSplit(tuple(ours), request._replace(resources=tuple(rest)) if rest else None, tuple(refused.values()))


def _duplicate_fault(resources: int, names: list[str]) -> tuple[int, str] | None:
    if resources > 1:
        return _INVALID_REQUEST, "The resource is in the request more than once; name it once."
    for name, count in Counter(names).items():
        if count > 1:
            return _INVALID_REQUEST, f"{name} is named {count} times; name it once."
    return None


def _operation_fault(operations: Iterable[ConfigOperation]) -> tuple[int, str] | None:
    for name, operation, value in operations:
        if operation not in _OPERATIONS:
            return _INVALID_REQUEST, f"{name}: there is no operation {operation}; SET is {SET}, DELETE is {DELETE}."
        if operation in (APPEND, SUBTRACT):
            return _INVALID_CONFIG, f"{name}: {_OPERATIONS[operation]} is for lists, this is none; use SET or DELETE."
        if operation == SET and value is None:
            return _INVALID_REQUEST, f"{name}: SET needs a value; to remove the key use DELETE."
    return None


def without_resources(request: R, resources: Collection[ResourceKey]) -> R | None:
    """The request without these (resource type, resource name); None if nothing is left of it."""
    kept = tuple(resource for resource in request.resources if resource[:2] not in resources)
    return request._replace(resources=kept) if kept else None


def merge_altered(
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    answer: AlterConfigsResponse | None,
    ours: Iterable[AlterConfigsResult],
) -> AlterConfigsResponse:
    """One answer to the whole `request`, in its order.

    Args:
        answer: the broker's, to its part of the request; None if it was sent nothing.
        ours: our results, one per resource at most: of the keys that we took, and of refused resources.

    Of a resource with two results the broker's counts if it is an error, else ours. One without any gets
    UNKNOWN_SERVER_ERROR. The broker's results for other resources come last.
    """
    theirs: dict[ResourceKey, deque[AlterConfigsResult]] = {}
    for row in answer.responses if answer else ():
        theirs.setdefault(row[2:], deque()).append(row)
    own = {row[2:]: row for row in ours}
    responses = []
    for resource in request.resources:
        key: ResourceKey = resource[:2]
        rows = theirs.get(key)
        result = rows.popleft() if rows else None
        if result is None or result.error_code == api.NONE:
            result = own.get(key, result)
        if result is None:
            result = AlterConfigsResult(_UNKNOWN_SERVER_ERROR, "The broker gave no result for this resource.", *key)
        responses.append(result)
    responses += [row for rows in theirs.values() for row in rows]
    return AlterConfigsResponse(answer.throttle_time_ms if answer else 0, tuple(responses))


def merge_described(
    request: DescribeConfigsRequest,
    answer: DescribeConfigsResponse,
    ours: Callable[[int, str], Iterable[DescribedConfig]],
) -> DescribeConfigsResponse:
    """The broker's answer with our rows in it, in the order of the request, which it was sent unchanged.

    Args:
        ours: all that we have for (resource type, resource name); of these only the keys that were asked for are added,
            without synonyms and documentation where the request doesn't want them. They go behind the broker's and
            replace its row of the same key. A resource with an error gets none.
    """
    theirs: dict[ResourceKey, deque[DescribeConfigsResult]] = {}
    for result in answer.results:
        theirs.setdefault((result.resource_type, result.resource_name), deque()).append(result)
    results = []
    for resource in request.resources:
        rows = theirs.get(resource[:2])
        if not rows:
            continue
        result = rows.popleft()
        if result.error_code == api.NONE:
            result = _with_ours(result, _requested_configs(request, resource, ours))
        results.append(result)
    results += [result for rows in theirs.values() for result in rows]
    return answer._replace(results=tuple(results))


def _requested_configs(
    request: DescribeConfigsRequest,
    resource: DescribeConfigsResource,
    ours: Callable[[int, str], Iterable[DescribedConfig]],
) -> tuple[DescribedConfig, ...]:
    return tuple(
        config._replace(
            synonyms=config.synonyms if request.include_synonyms else (),
            documentation=config.documentation if request.include_documentation else None,
        )
        for config in ours(resource.resource_type, resource.resource_name)
        if resource.requests_key(config.name)
    )


def _with_ours(result: DescribeConfigsResult, ours: tuple[DescribedConfig, ...]) -> DescribeConfigsResult:
    if not ours:
        return result
    names = {config.name for config in ours}
    return result._replace(configs=tuple(config for config in result.configs if config.name not in names) + ours)
