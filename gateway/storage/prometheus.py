# Volumes as Prometheus knows them: two expressions, available and size in bytes, asked over its HTTP API
# (/api/v1/query), and the labels that say which broker and which volume a series is of. For clusters whose brokers
# don't describe their log dirs, or may not be asked; anything that speaks this API will do (Thanos, Mimir,
# VictoriaMetrics).
#
# One wrong number here stops producers or lets a disk fill up, so whatever is incomplete or ambiguous is a failed
# observation, never a guess. Knows no limits and no Kafka; who is active it is told.

from __future__ import annotations

import base64
import json
import math
import re
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gateway.http.http_client import HttpError, HttpResponse, ResponseTooLarge, fetch_url
from gateway.system.hosts import holds_credentials
from policies.storage import Observation, ObservationFailed, Volume, VolumeKey, volume_text
from policies.units import parse_duration

# Where nothing is configured, these are asked in turn until one has series: node_exporter beside each broker, and what
# a kubelet says of Strimzi's volume claims. Plain selectors, because `timestamp()` knows the age of those only.
DEFAULTS: Final = (
    ('node_filesystem_avail_bytes{mountpoint=~".*kafka.*"}', 'node_filesystem_size_bytes{mountpoint=~".*kafka.*"}'),
    (
        'kubelet_volume_stats_available_bytes{persistentvolumeclaim=~"data-.*kafka.*"}',
        'kubelet_volume_stats_capacity_bytes{persistentvolumeclaim=~"data-.*kafka.*"}',
    ),
)

BROKER_LABELS: Final = ("broker_id", "broker", "persistentvolumeclaim", "instance")  # the first that a series has
VOLUME_LABELS: Final = ("mountpoint", "persistentvolumeclaim", "device")
# The number that ends a host's or claim's name: 2, kafka-2:9100, broker2.example.com, data-0-my-cluster-kafka-2. None
# in 10.0.0.2:9100 or ip-10-0-0-2.ec2.internal.
BROKER_PATTERN: Final = r"^(?:[^.:]*[A-Za-z][-_]?)?(\d+)(?:\.[A-Za-z][^:]*)?(?::\d+)?$"
_CLAIM: Final = re.compile(r"^data-(?:\d+-)?")  # Strimzi's: data-NAME, and data-VOLUME-NAME where there are several
MAX_RESPONSE_BYTES: Final = 16 * 2**20  # about 50,000 series; Kafka's volumes are hundreds
MAX_NAMED: Final = 3  # of what is missing, in one line


class _VolumeSample(NamedTuple):
    broker_id: int
    volume: str
    owner: str  # what the broker id was read from, without the volume's part: one broker has one
    value: float


class _QueryResponse(NamedTuple):
    at: float | None  # Unix seconds by Prometheus' clock; None: it had nothing to say
    series: tuple[tuple[dict[str, str], float], ...]


class Prometheus:
    """A volume source. The brokers that must be there: `expected_brokers`, else those of `active_brokers`, else those
    that have a volume: then a broker of which Prometheus knows nothing can't be missed.

    Args:
        url: of Prometheus, http or https, with a path where it lives under one; /api/v1/query is added.
        available, size: PromQL, bytes, one series per volume with the same labels. Both or none (then DEFAULTS).
        broker_label, volume_label: "": the first of BROKER_LABELS, VOLUME_LABELS that a series has.
        broker_pattern: finds the broker's id in that label: its group `broker`, or its first.
        brokers: label's value -> broker id, for values without one in them; looked up first.
        max_age: seconds, or text such as 3m. Samples older than that are no observation.
        timeout_s: for all of one observation.
        username, password_file: basic authentication.
        bearer_token_file: instead. Read anew each time.
        ca_file: PEM, instead of the system's.

    Raises:
        ValueError: one line that says which argument is wrong.
    """

    def __init__(
        self,
        url: str,
        available: str = "",
        size: str = "",
        broker_label: str = "",
        volume_label: str = "",
        timeout_s: float = 10.0,
        *,
        broker_pattern: str = BROKER_PATTERN,
        brokers: Mapping[str, int] | None = None,
        max_age: float | str = 180.0,
        username: str = "",
        password_file: str = "",
        bearer_token_file: str = "",
        ca_file: str = "",
        expected_brokers: Iterable[int] | None = None,
        active_brokers: Callable[[], Iterable[int]] | None = None,
    ) -> None:
        if bool(available) != bool(size):
            raise ValueError("available and size belong together: give both expressions, or neither")
        if bool(username) != bool(password_file) or (username and bearer_token_file):
            raise ValueError("give username and password_file, or bearer_token_file, or none of them")
        self._url = _check_url(url)
        self._expressions = ((available, size),) if available else DEFAULTS
        self._broker_labels = (broker_label,) if broker_label else BROKER_LABELS
        self._volume_labels = (volume_label,) if volume_label else VOLUME_LABELS
        self._pattern = _compile_pattern(broker_pattern)
        self._brokers = {str(text): int(broker_id) for text, broker_id in (brokers or {}).items()}
        self._max_age_s = _parse_seconds("max_age", max_age)
        self._timeout_s = _parse_seconds("timeout_s", timeout_s)
        self._username, self._password_file = username, password_file
        self._token_file, self._ca_file = bearer_token_file, ca_file
        self._expected = None if expected_brokers is None else frozenset(expected_brokers)
        if self._expected is not None and not self._expected:
            raise ValueError("expected_brokers: at least one is needed")
        self._active = active_brokers
        try:
            self._make_tls_context(), self._authorization_header()
        except ObservationFailed as error:
            raise ValueError(str(error)) from error

    def observe(self) -> Observation:
        """Ask. Blocks for up to `timeout_s`, and for the time that `active_brokers` takes.

        Raises:
            ObservationFailed: no answer, or a partial, stale or ambiguous one.
        """
        deadline = time.monotonic() + self._timeout_s
        available, size = self._query_volumes(deadline)
        active = self._active_brokers()
        if active is None:
            active = frozenset(broker_id for broker_id, _ in available)
        volumes = [
            _make_volume(key, available[key].value, size[key].value) for key in sorted(available) if key[0] in active
        ]
        return Observation(brokers=active, volumes=tuple(volumes))

    def _active_brokers(self) -> frozenset[int] | None:
        if self._expected is not None:
            return self._expected
        return None if self._active is None else frozenset(self._active())

    def _query_volumes(self, deadline: float) -> tuple[dict[VolumeKey, _VolumeSample], dict[VolumeKey, _VolumeSample]]:
        trust = self._make_tls_context()
        for available, size in self._expressions:
            first = self._run_query(trust, available, None, deadline)
            second = self._run_query(trust, size, first.at, deadline)
            if first.series or second.series:
                break
        else:
            asked = " nor ".join(each for each, _ in self._expressions)
            raise ObservationFailed(f"Prometheus has no series for {asked}")
        of_available, of_size = self._index_by_volume("available", first), self._index_by_volume("size", second)
        for what, here, there in (("available", of_available, of_size), ("size", of_size, of_available)):
            if there.keys() - here.keys():
                raise ObservationFailed(f"Prometheus has no {what} of {_volumes_text(there.keys() - here.keys())}")
        for expression in (available, size):
            self._check_age(expression, self._run_query(trust, f"timestamp(\n{expression}\n)", first.at, deadline))
        return of_available, of_size

    def _check_age(self, expression: str, stamps: _QueryResponse) -> None:
        """By Prometheus' own clock, which says when it took them for plain selectors only: else the age is 0."""
        if stamps.at is None:
            raise ObservationFailed(f"Prometheus does not say how old the samples of {expression} are")
        age = stamps.at - min(stamp for _, stamp in stamps.series)
        if not age <= self._max_age_s:  # NaN included
            raise ObservationFailed(
                f"Prometheus' samples of {expression} are up to {age:.0f} s old, and max_age is {self._max_age_s:g} s"
            )

    def _index_by_volume(self, what: str, answer: _QueryResponse) -> dict[VolumeKey, _VolumeSample]:
        found: dict[VolumeKey, _VolumeSample] = {}
        owners: dict[int, str] = {}
        for labels, value in answer.series:
            series = self._identify_series(labels, value)
            key = (series.broker_id, series.volume)
            if not (math.isfinite(value) and value >= 0):
                raise ObservationFailed(f"Prometheus says {what} = {value} of {volume_text(key)}")
            owner = owners.setdefault(series.broker_id, series.owner)
            if owner != series.owner:
                both = " and ".join(sorted((owner, series.owner)))
                raise ObservationFailed(
                    f"broker {series.broker_id} is both {both}: narrow the expressions to one cluster"
                )
            if key in found:
                raise ObservationFailed(
                    f"Prometheus has more than one {what} of {volume_text(key)}: narrow the expression, for"
                    " example by job"
                )
            found[key] = series
        return found

    def _identify_series(self, labels: dict[str, str], value: float) -> _VolumeSample:
        label = next((each for each in self._broker_labels if labels.get(each)), None)
        shown = ", ".join(f"{key}={text!r}" for key, text in sorted(labels.items()))
        if label is None:
            raise ObservationFailed(f"no label {' or '.join(self._broker_labels)} says the broker of {{{shown}}}")
        text = labels[label]
        broker_id = self._brokers.get(text)
        if broker_id is None:
            match = self._pattern.search(text)
            number = match and (match["broker"] if "broker" in self._pattern.groupindex else match[1])
            if not number or not number.isdecimal():
                raise ObservationFailed(
                    f"no broker id in {label}={text!r}: set broker_label, broker_pattern or brokers"
                )
            broker_id = int(number)
        volume = next((labels[each] for each in self._volume_labels if labels.get(each)), None)
        if volume is None:
            raise ObservationFailed(f"no label {' or '.join(self._volume_labels)} says the volume of {{{shown}}}")
        namespace = labels.get("namespace", "")
        owner = f"{namespace}/{_CLAIM.sub('', text)}" if namespace else _CLAIM.sub("", text)
        return _VolumeSample(broker_id, volume, owner, value)

    def _run_query(
        self, trust: ssl.SSLContext | None, expression: str, at: float | None, deadline: float
    ) -> _QueryResponse:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ObservationFailed(f"Prometheus at {self._url} took longer than {self._timeout_s:g} s")
        parameters = {"query": expression, "timeout": f"{max(1, round(left * 1000))}ms"}
        if at is not None:
            parameters["time"] = f"{at:.3f}"
        try:
            answer = fetch_url(
                f"{self._url}/api/v1/query?{urllib.parse.urlencode(parameters)}",
                headers=self._authorization_header(),
                timeout_s=left,
                max_bytes=MAX_RESPONSE_BYTES,
                trust=trust,
                proxies=True,
            )
        except ResponseTooLarge as error:
            raise ObservationFailed(f"Prometheus at {self._url}: {error}: narrow the expression") from error
        except HttpError as error:
            raise ObservationFailed(f"Prometheus at {self._url}: {error}") from error
        if not 200 <= answer.status < 300:
            raise ObservationFailed(self._refusal_text(answer))
        return self._parse_response(expression, answer.body)

    def _refusal_text(self, answer: HttpResponse) -> str:
        where = f"Prometheus at {self._url} answers {answer.status}"
        if 300 <= answer.status < 400:
            return f"{where}: it is at {answer.headers.get('Location', 'another address')}, write that as url"
        if answer.status in (401, 403):
            return f"{where}: check username and password_file, or bearer_token_file"
        try:
            reason = json.loads(answer.body)["error"]
        except (ValueError, KeyError, TypeError):
            reason = answer.reason
        return f"{where}: {_one_line(reason)}"

    def _parse_response(self, expression: str, body: bytes) -> _QueryResponse:
        try:
            answer = json.loads(body)
            if answer["status"] != "success":
                raise ObservationFailed(
                    f"Prometheus at {self._url}: {_one_line(answer.get('error', answer['status']))}"
                )
            data = answer["data"]
            # Thanos and remote storage warn of missing series. Remarks on the expression are something else.
            warnings = [text for text in map(str, answer.get("warnings") or ()) if not text.startswith("PromQL info")]
            if warnings or answer.get("isPartial"):
                warning = _one_line("; ".join(warnings) or "the answer is partial")
                raise ObservationFailed(f"Prometheus at {self._url} warns: {warning}")
            if data["resultType"] != "vector":
                raise ObservationFailed(f"{expression} is a {data['resultType']}: one number per volume is needed")
            series = [(dict(each["metric"]), each["value"]) for each in data["result"]]
            at = float(series[0][1][0]) if series else None
            return _QueryResponse(at, tuple((labels, float(value[1])) for labels, value in series))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ObservationFailed(f"{self._url} does not answer as Prometheus does: {_one_line(error)}") from error

    def _make_tls_context(self) -> ssl.SSLContext | None:
        """Made for each observation: certificates get replaced."""
        if not self._url.startswith("https:"):
            return None
        try:
            return ssl.create_default_context(cafile=self._ca_file or None)
        except OSError as error:
            raise ObservationFailed(f"ca_file {self._ca_file}: {error.strerror or _one_line(error)}") from error

    def _authorization_header(self) -> dict[str, str]:
        if self._token_file:
            return {"Authorization": f"Bearer {_read_secret('bearer_token_file', self._token_file)}"}
        if self._username:
            pair = f"{self._username}:{_read_secret('password_file', self._password_file)}"
            return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        return {}


def _make_volume(key: VolumeKey, available: float, size: float) -> Volume:
    if size <= 0 or available > size:
        raise ObservationFailed(
            f"Prometheus says that {available:.0f} of {size:.0f} bytes of {volume_text(key)} are available"
        )
    return Volume(broker_id=key[0], name=key[1], total=int(size), available=int(available))


def _check_url(url: str) -> str:
    if holds_credentials(url):
        raise ValueError("url: credentials don't belong there: give username and password_file")
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"url {url!r} is not a valid URL of Prometheus; for example: http://prometheus:9090")
    return url.rstrip("/").removesuffix("/api/v1/query")


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"broker_pattern {pattern!r} is not a valid regular expression: {error}") from error
    if not compiled.groups:
        raise ValueError(f"broker_pattern {pattern!r} needs a group around the broker's id, for example (\\d+)$")
    return compiled


def _parse_seconds(name: str, value: object) -> float:
    seconds = parse_duration(value)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise ValueError(f"{name}: {value!r} is not a valid time; for example: 3m")
    return float(seconds)


def _read_secret(name: str, path: str) -> str:
    try:
        text = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or _one_line(error)
        raise ObservationFailed(f"{name} {path} can't be read: {why}") from error
    if not text or not text.isprintable():
        raise ObservationFailed(f"{name} {path} holds no line of text")
    return text


def _volumes_text(keys: Iterable[VolumeKey]) -> str:
    named = [volume_text(key) for key in sorted(keys)]
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    return ", ".join(named[:MAX_NAMED]) + more


def _one_line(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__
