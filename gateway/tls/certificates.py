# PEM files in, the SSLContext of the client-facing listeners out, or one line that says what is wrong with which file.
#
# The parent reads them before it starts anything, to say what is wrong (cli.py). Each worker reads them for itself, and
# again once they have changed, so that certificates are renewed without a restart; a new one that can't be used is said
# once, and the old one stays. Knows no sockets. Keys in messages are those of a listener: Kafka's names.
# Trust and certificates of connections to brokers are broker_tls.py's; it reads files in the same way.

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Literal, NamedTuple

import msgspec

from gateway.system.files import FileSignature, file_signature
from gateway.tls.principal_rules import DEFAULT_RULE, PrincipalRules

CHECK_INTERVAL_S: Final = 1.0  # files are looked at when a connection comes, so often at most
SETTLE_S: Final = 3.0  # a certificate and its key are two files: one may be new before the other
PEER_CLOSED_ERRORS: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError)  # the peer closed: Python 3.11.2 says the latter
PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

_CERTIFICATE = re.compile(rb"-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----")
_KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----")
_ENCRYPTED = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|Proc-Type: 4,ENCRYPTED")
_JAVA_KEYSTORE = b"\xfe\xed\xfe\xed"
_DER_SEQUENCE = b"\x30"  # how PKCS#12 begins, and a certificate that is not PEM
_MISMATCH = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED", "NO_PRIVATE_KEY_ASSIGNED")
_WRONG_PASSWORD = (None, "BAD_DECRYPT", "MAYBE_WRONG_PASSWORD")  # by OpenSSL's version, and how the key is encrypted

_KEYSTORE, _KEY_FILE, _TRUSTSTORE = "ssl.keystore.location", "ssl.key.location", "ssl.truststore.location"

FileSignatures = tuple[FileSignature | None, ...]


class ListenerTls(msgspec.Struct, frozen=True):
    """A listener's TLS. Paths are those of PEM files.

    Attributes:
        keystore: the certificate, those between it and the CA behind it, and the private key unless `key` has it.
        password: of an encrypted key.
        truststore: CAs whose client certificates are taken.
        principal_rules: which principals these make.
    """

    keystore: str
    key: str = ""
    password: str = ""
    truststore: str = ""
    client_auth: Literal["none", "requested", "required"] = "none"
    protocols: tuple[str, ...] = tuple(PROTOCOLS)
    principal_rules: str = DEFAULT_RULE

    def __repr__(self) -> str:
        return f"ListenerTls({self.keystore!r}, …)"  # never the password

    def files_by_key(self) -> dict[str, str]:
        files = {_KEYSTORE: self.keystore, _KEY_FILE: self.key, _TRUSTSTORE: self.truststore}
        return {key: path for key, path in files.items() if path}


class CertificateError(Exception):
    """These files can't be used; the text is one line: key, fault, and a right value."""


def find_unreadable_files(files: Mapping[str, str]) -> list[str]:
    """What makes files unreadable, as CertificateError says it: a line for each. `files`: paths by key."""
    lines = []
    for key, path in files.items():
        try:
            _read_file(key, path)
        except CertificateError as error:
            if not isinstance(error.__cause__, IsADirectoryError):  # CAs may be a folder
                lines.append(str(error))
    return lines


def make_listener_context(tls: ListenerTls) -> ssl.SSLContext:
    """The context that connections are accepted with.

    Raises:
        CertificateError: these files can't be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    spoken = [PROTOCOLS[name] for name in tls.protocols]
    context.minimum_version, context.maximum_version = min(spoken), max(spoken)
    context.options |= ssl.OP_NO_RENEGOTIATION  # of TLS 1.2: clients could make us calculate for ever
    # Of TLS 1.3: a client that sends acks=0 and closes has not read them; its kernel then resets the connection, and
    # what it sent last is lost. Clients could hardly use them anyway: each worker would give others.
    context.num_tickets = 0
    load_chain(context, (_KEYSTORE, tls.keystore), (_KEY_FILE, tls.key), tls.password)
    if tls.truststore:
        _load_truststore(context, tls.truststore)
    auth = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
    context.verify_mode = auth[tls.client_auth]
    return context


def _load_truststore(context: ssl.SSLContext, path: str) -> None:
    check_certificates(_TRUSTSTORE, path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise CertificateError(f"{_TRUSTSTORE}: {path} can't be used: {_reason_text(error)}") from error
    except OSError as error:
        raise CertificateError(f"{_TRUSTSTORE}: {path} can't be read: {error.strerror}") from error


def check_certificates(key: str, path: str) -> None:
    """Whether the file has certificates in PEM; `key` is for the message.

    Raises:
        CertificateError: it hasn't, or can't be read.
    """
    _check_pem_block(key, path, _read_file(key, path), _CERTIFICATE, "certificate")


def load_chain(context: ssl.SSLContext, place: tuple[str, str], key_place: tuple[str, str], password: str) -> None:
    """Load a certificate and its key. A place is a key of the configuration and a path; the private key's has no path
    where it is in the certificate's file.

    Raises:
        CertificateError: they can't be used.
    """
    (name, path), (key_name, key_path) = place, key_place
    check_certificates(name, path)
    encrypted = _check_key(place, key_place, password)
    try:
        # The password is always given, or OpenSSL would ask for it on the terminal.
        context.load_cert_chain(path, key_path or None, password=lambda: password)
    except ssl.SSLError as error:
        if error.reason in _MISMATCH:
            raise CertificateError(
                f"{key_name if key_path else name}: the key in {key_path or path} is not that of the first certificate"
                f" in {path}: put the gateway's own certificate first, and give its key"
            ) from error
        if encrypted and error.reason in _WRONG_PASSWORD:
            raise CertificateError(f"ssl.key.password: does not open the key in {key_path or path}") from error
        raise CertificateError(f"{name}: {path} can't be used: {_reason_text(error)}") from error
    except (OSError, ValueError) as error:  # gone since, or a password longer than OpenSSL takes
        raise CertificateError(f"{name}: {path} can't be used: {error}") from error


def _check_key(place: tuple[str, str], key_place: tuple[str, str], password: str) -> bool:
    """Whether the key is encrypted."""
    where, path = key_place if key_place[1] else place
    data = _read_file(where, path)
    if not key_place[1] and not _KEY.search(data):
        raise CertificateError(
            f"{where}: {path} has a certificate, but no private key: append the key, or write {key_place[0]}: PATH"
        )
    _check_pem_block(where, path, data, _KEY, "private key")
    encrypted = _ENCRYPTED.search(data) is not None
    if encrypted and not password:
        raise CertificateError(f"ssl.key.password: is needed, because the key in {path} is encrypted")
    return encrypted


def _read_file(key: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CertificateError(f"{key}: {path} can't be read: {error.strerror}") from error


def _check_pem_block(key: str, path: str, data: bytes, pattern: re.Pattern[bytes], what: str) -> None:
    if pattern.search(data):
        return
    if data.startswith((_JAVA_KEYSTORE, _DER_SEQUENCE)):
        is_java = data.startswith(_JAVA_KEYSTORE)
        first = "keytool -importkeystore -deststoretype pkcs12, then " if is_java else ""
        raise CertificateError(
            f"{key}: {path} is {'a Java keystore' if is_java else 'PKCS#12 or DER'}, and only PEM is read: convert it"
            f" with {first}openssl pkcs12 -in FILE -out FILE.pem"
        )
    raise CertificateError(f"{key}: {path} has no {what} in PEM (-----BEGIN {what.upper()}-----)")


def _reason_text(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")


class ReloadMessages(NamedTuple):
    """The words of `ReloadedContext`, beside the fault itself. `key_prefix`: of the faulty key, in front of its
    name.
    """

    key_prefix: str
    unusable: str  # there is no context
    kept: str  # a new one can't be used
    renewed: str


class ReloadedContext:
    """The context for new connections, made anew once a file has changed.

    Attributes:
        problem: the fault of the present files; "": none, as far as known.
    """

    def __init__(
        self,
        files: tuple[str, ...],
        make: Callable[[], ssl.SSLContext],
        words: ReloadMessages,
        log: Callable[[str, str], None],
        doubts: Callable[[], list[str]] = list,
    ) -> None:
        """`make` raises CertificateError; `log` is called with a level and one line. `doubts`: what else is to be said
        of files that were taken.
        """
        self.problem = ""
        self._files = files
        self._make = make
        self._messages = words
        self._log = log
        self._find_doubts = doubts
        self._context: ssl.SSLContext | None = None
        self._loaded_signatures: FileSignatures | None = None  # of the files that were taken
        self._failed_signatures: FileSignatures | None = None
        self._failed_at = 0.0
        self._is_failure_logged = False
        self._next_check_at = float("-inf")

    def get_context(self, now: float) -> ssl.SSLContext | None:
        """The context for a new connection. None: the files have never been usable; `problem` says why.

        `now` is monotonic, in seconds.
        """
        if now >= self._next_check_at:
            self._next_check_at = now + CHECK_INTERVAL_S
            seen = self._read_signatures()
            if seen != self._loaded_signatures:
                self._reload_context(seen, now)
        return self._context

    def _read_signatures(self) -> FileSignatures:
        return tuple(map(file_signature, self._files))

    def _reload_context(self, seen: FileSignatures, now: float) -> None:
        try:
            context = self._make()
        except CertificateError as error:
            if seen != self._failed_signatures:
                self._failed_signatures, self._failed_at, self._is_failure_logged = seen, now, False
            self.problem = f"{self._messages.key_prefix}{error}"
            has_settled = self._context is None or now - self._failed_at >= SETTLE_S
            if has_settled and not self._is_failure_logged:
                what = self._messages.unusable if self._context is None else self._messages.kept
                self._log("error", f"{self.problem}; {what}")
                self._is_failure_logged = True
            return  # and made again at the next check: there may only be too many open files
        if self._context is not None or self._failed_signatures is not None:
            self._log("info", self._messages.renewed)
        self._context, self._loaded_signatures, self._failed_signatures, self.problem = context, seen, None, ""
        for doubt in self._find_doubts():
            self._log("warning", f"{self._messages.key_prefix}{doubt}")


class ListenerCertificates(ReloadedContext):
    """The context for clients' new connections.

    Attributes:
        rules: which principals clients' certificates make.
    """

    def __init__(
        self,
        tls: ListenerTls,
        log: Callable[[str, str], None],
        where: str = "listener",
        make: Callable[[ListenerTls], ssl.SSLContext] = make_listener_context,
        doubts: Callable[[ListenerTls], list[str]] = lambda tls: [],
    ) -> None:
        """`log` is called with a level and one line; `where` is the path of the section in the configuration."""
        words = ReloadMessages(
            key_prefix=f"{where}.",
            unusable="clients can't connect",
            kept="the certificate that was read before stays in use",
            renewed=f"{where}: new connections use the certificate that is in {tls.keystore} now",
        )
        super().__init__(tuple(tls.files_by_key().values()), partial(make, tls), words, log, partial(doubts, tls))
        self.rules = PrincipalRules(tls.principal_rules)
