# The records that passwords are verified by, and the gateway's own credentials for brokers: from files, which are read
# again when they change, and from a command of the operator's. A file that can't be used any more is said once, and
# what was read of it before stays in force. Nothing is kept longer than the file says it, or the command's time.
#
# Knows no exchange and no connection.

from __future__ import annotations

import functools
import json
import logging
import math
import subprocess
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

import trio

from gateway import yaml_text
from gateway.control.sasl.fair_semaphore import FairSemaphore
from gateway.kafka import oauthbearer, sasl
from gateway.kafka.oauthbearer import NoTokenError, TokenCache, TokenSource
from gateway.kafka.property_text import as_property_text
from gateway.system.files import FileSignature, file_signature
from gateway.tls.broker_tls import InvalidProperties
from policies.text import one_line
from protocol.authentication.scram import HASHES, ScramRecord, parse_record
from protocol.rewriting.identity import UnusableName, principal_name

log = logging.getLogger("gateway.authentication")

CHECK_INTERVAL_S: Final = 1.0  # a file is checked when a client authenticates, this often at most
RETRY_S: Final = 10.0  # between two attempts at a file that can't be used: to read it may take a second
DEFAULT: Final = "default"  # in the file for brokers: all principals that aren't named
COMMANDS: Final = 4  # at once
COMMANDS_OF_ADDRESS: Final = 2  # of these: who tries out names from one address leaves room to all others
MAX_OUTPUT: Final = 64 * 1024
MAX_CACHED: Final = 10_000
FETCHES: Final = 8  # of tokens, at once
TOKEN_S: Final = 8.0  # for one; a worker waits 10 s
UNKNOWN_USER_S: Final = 10.0  # an unknown user stays unknown for this time at most, so a new one is soon known

T = TypeVar("T")
Records = Mapping[str, ScramRecord]  # of one user, by mechanism


class CredentialsError(Exception):
    """A file, or a command's output, can't be used: one line, without any of its secrets."""


class BrokerCredentials(NamedTuple):
    """By which the gateway authenticates to brokers; with OAUTHBEARER by a token of one of the last two.

    Attributes:
        username: with OAUTHBEARER, only for messages.
        password: with OAUTHBEARER, none until there is a token.
        token_file: has one, which another program renews.
        bearer: an issuer that gives one.
    """

    mechanism: str
    username: str
    password: str = ""
    token_file: str = ""
    bearer: TokenSource | None = None


# --- files ------------------------------------------------------------------------------------------------------------


def read_records(path: Path) -> dict[str, Records]:
    """`alice: {SCRAM-SHA-256: "salt=…,stored_key=…,server_key=…,iterations=4096"}`.

    Raises:
        CredentialsError: it can't be used.
    """
    return {check_name(name, path): records_of(value, f"{path}: {name}") for name, value in _load_yaml(path).items()}


def records_of(value: object, where: str) -> Records:
    """The records of one user.

    Raises:
        CredentialsError: `where` stands before the fault.
    """
    if not isinstance(value, dict) or not value or not value.keys() <= HASHES.keys():
        raise CredentialsError(f"{where}: must have a record for one or both of {', '.join(HASHES)}")
    records = {}
    for mechanism, text in value.items():
        try:
            records[mechanism] = parse_record(str(text), HASHES[mechanism])
        except ValueError as error:
            raise CredentialsError(f"{where}: {mechanism}: {error}") from None
    return records


def read_broker_credentials(path: Path) -> dict[str, BrokerCredentials]:
    """`"User:alice": {mechanism: SCRAM-SHA-512, username: …, password: …}`, or under `default`; with OAUTHBEARER
    `token_file` or librdkafka's properties.

    Raises:
        CredentialsError: it can't be used.
    """
    found = {}
    for principal, value in _load_yaml(path).items():
        where = f"{path}: {principal}"
        if principal != DEFAULT and ":" not in str(principal):
            raise CredentialsError(f"{where}: is not a valid principal: write User:{principal}, or {DEFAULT}")
        given = (
            {str(key): _property_text(str(key), text, where) for key, text in value.items()}
            if isinstance(value, dict)
            else {}
        )
        is_bearer = given.get("mechanism") == oauthbearer.MECHANISM
        found[str(principal)] = _bearer_credentials(given, where) if is_bearer else _password_credentials(given, where)
    return found


def _password_credentials(given: dict[str, str], where: str) -> BrokerCredentials:
    if given.keys() != {"mechanism", "username", "password"}:
        raise CredentialsError(f"{where}: must have exactly mechanism, username, password (or OAUTHBEARER's keys)")
    own = BrokerCredentials(given["mechanism"], given["username"], given["password"])
    if own.mechanism not in sasl.MECHANISMS or not own.username or not own.password:
        known = ", ".join(sasl.MECHANISMS)
        raise CredentialsError(
            f"{where}: mechanism must be one of {known}, with username and password, or {oauthbearer.MECHANISM}"
        )
    return own


def _bearer_credentials(given: dict[str, str], where: str) -> BrokerCredentials:
    mechanism = given.pop("mechanism")
    if given.keys() == {"token_file"}:
        return BrokerCredentials(mechanism, given["token_file"], token_file=given["token_file"])
    for key in given:
        if key not in oauthbearer.BEARER_PROPERTIES:
            raise CredentialsError(
                f"{where}: {key}: not understood with {mechanism}: write token_file: FILE, or"
                " sasl.oauthbearer.method: oidc and its client.id, client.secret and token.endpoint.url"
            )
    try:
        bearer = oauthbearer.parse_token_source(given)
    except InvalidProperties as error:
        raise CredentialsError(f"{where}: {error}") from None
    return BrokerCredentials(mechanism, bearer.client_id or "unsecured tokens", bearer=bearer)


def _property_text(key: str, value: object, where: str) -> str:
    text = as_property_text(key, value)
    if text is None:
        raise CredentialsError(f"{where}: {key}: YAML takes this for no text: put it in quotes")
    return text


def _load_yaml(path: Path) -> dict[Any, Any]:
    try:
        data = yaml_text.load_yaml(yaml_text.read_text(path), str(path))
    except yaml_text.YamlError as error:
        raise CredentialsError(str(error)) from None
    if not isinstance(data, dict):
        raise CredentialsError(f"{path}: names with what belongs to each are needed at the top level")
    return data


def check_name(name: object, path: Path) -> str:
    """
    Raises:
        CredentialsError: the name is not valid.
    """
    if not isinstance(name, str):
        raise CredentialsError(f"{path}: {one_line(str(name))}: must be a user's name, in quotes where it is a number")
    try:
        return principal_name(name)
    except UnusableName as error:
        raise CredentialsError(f"{path}: {one_line(name)}: not a valid name: it {error}") from None


class WatchedFile(Generic[T]):
    """The contents of a file, read in a thread."""

    def __init__(self, path: Path, read: Callable[[Path], T]) -> None:
        self._path = path
        self._read = read
        self._value: T | None = None
        self._read_signature: FileSignature | None = None  # of the file that the value is from …
        self._failed_signature: FileSignature | None = None  # … and of one that can't be used: not again before
        self._retry_at = -math.inf
        self._problem = ""
        self._next_check = -math.inf
        self._read_lock = trio.Lock()

    async def get(self) -> T:
        """
        Raises:
            CredentialsError: it has never been usable.
        """
        async with self._read_lock:
            if trio.current_time() >= self._next_check:
                await self._read_if_changed()
                self._next_check = trio.current_time() + CHECK_INTERVAL_S
        if self._value is None:
            raise CredentialsError(f"{self._path} can't be used")
        return self._value

    async def _read_if_changed(self) -> None:
        seen = file_signature(self._path)
        if seen == self._read_signature and self._value is not None:
            return
        if seen == self._failed_signature and trio.current_time() < self._retry_at:
            return
        try:
            self._value, self._read_signature = await trio.to_thread.run_sync(self._read, self._path), seen
            self._problem = ""
        except CredentialsError as error:  # read again later: there may only be too many open files
            self._failed_signature, self._retry_at = seen, trio.current_time() + RETRY_S
            if str(error) != self._problem:
                kept = "" if self._value is None else "; what was read of it before stays in force"
                log.error("authentication: %s%s", error, kept)
            self._problem = str(error)


# --- tokens for brokers -----------------------------------------------------------------------------------------------


class BrokerTokens:
    """The tokens with which the gateway authenticates to brokers: from files, or from issuers, of which each is asked
    once for as long as its token holds.
    """

    def __init__(self) -> None:
        self._issued: OrderedDict[TokenSource, TokenCache] = OrderedDict()
        self._threads = trio.CapacityLimiter(FETCHES)

    async def fill_token(self, own: BrokerCredentials) -> BrokerCredentials:
        """With a token, where OAUTHBEARER needs one.

        Raises:
            NoTokenError: there is none.
        """
        if own.mechanism != oauthbearer.MECHANISM:
            return own
        extensions: tuple[str, ...] = ()
        ask: Callable[[], str] = functools.partial(oauthbearer.read_token_file, own.token_file)
        if own.bearer is not None:
            ask, extensions = (
                functools.partial(self._tokens_of(own.bearer).get_token, own.bearer),
                own.bearer.extensions,
            )
        with trio.move_on_after(TOKEN_S):
            token = await trio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=self._threads)
            return own._replace(password=oauthbearer.client_first_message(token, extensions).decode())
        raise NoTokenError(f"{own.username}: no answer within {TOKEN_S:g} s")

    def _tokens_of(self, bearer: TokenSource) -> TokenCache:
        tokens = self._issued.setdefault(bearer, TokenCache())
        self._issued.move_to_end(bearer)
        if len(self._issued) > MAX_CACHED:  # the file has been another one often
            self._issued.popitem(last=False)
        return tokens


# --- the operator's command -------------------------------------------------------------------------------------------


class _AnswerCache:
    """The command's answers that are still valid, a bounded number of them."""

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s = lasts_s
        self._known: OrderedDict[tuple[str, str], tuple[float, Records]] = OrderedDict()

    def get(self, key: tuple[str, str]) -> Records | None:
        until, records = self._known.get(key, (-math.inf, None))
        return records if trio.current_time() < until else None

    def store_records(self, key: tuple[str, str], records: Records) -> None:
        self._known[key] = trio.current_time() + self._lasts_s, records
        self._known.move_to_end(key)
        if len(self._known) > MAX_CACHED:
            self._known.popitem(last=False)


class CredentialsCommand:
    """Runs the operator's command. It gets `{"username": …, "mechanism": …}` on its standard input, and prints a user's
    records as JSON, as in the file, or nothing where there is no such user.

    Any client may ask about any name. So addresses take turns, and unknown names are cached apart from users.
    """

    def __init__(self, command: tuple[str, ...], timeout_s: float, cache_s: float) -> None:
        self._command = command
        self._timeout_s = timeout_s
        self._known_users = _AnswerCache(cache_s)
        self._unknown_users = _AnswerCache(min(cache_s, UNKNOWN_USER_S))
        self._turns = FairSemaphore(COMMANDS, COMMANDS_OF_ADDRESS)

    async def fetch_records(self, name: str, mechanism: str, address: str) -> Records:
        """Empty: there is no such user. `address`: the client's.

        Raises:
            CredentialsError: the command gives no usable answer.
        """
        key = name, mechanism
        records = self._cached_records(key)
        if records is not None:
            return records
        with trio.move_on_after(self._timeout_s):  # its time begins when its turn would have: clients wait meanwhile
            async with self._turns.acquire_slot(address):
                records = self._cached_records(key)  # others may have asked the same
                if records is None:
                    records = await self._run_command(name, mechanism)
                    (self._known_users if records else self._unknown_users).store_records(key, records)
                return records
        raise CredentialsError(
            f"credentials_command: {self._command[0]} did not answer within {self._timeout_s:g} s, or had no time to"
        )

    def _cached_records(self, key: tuple[str, str]) -> Records | None:
        records = self._known_users.get(key)
        return self._unknown_users.get(key) if records is None else records

    async def _run_command(self, name: str, mechanism: str) -> Records:
        question = json.dumps({"username": name, "mechanism": mechanism}).encode()
        program = self._command[0]
        try:
            done = await trio.run_process(
                self._command, stdin=question, capture_stdout=True, stderr=subprocess.DEVNULL, check=False
            )
        except OSError as error:
            raise CredentialsError(f"credentials_command: {program}: {error.strerror or error}") from error
        if done.returncode or len(done.stdout) > MAX_OUTPUT:
            raise CredentialsError(f"credentials_command: {program} ended with {done.returncode}")
        if not done.stdout.strip():
            return {}
        try:
            output = json.loads(done.stdout)
        except ValueError:
            raise CredentialsError(f"credentials_command: {program} printed no JSON") from None
        return records_of(output, f"credentials_command: {program}")
