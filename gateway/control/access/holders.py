# From what a caller brings to a name and a role: tokens of the configuration and of its file, and principals of client
# certificates. A token file that can't be read gives no caller a role: a token that was taken out of it must not go on.
# Knows no request.

from __future__ import annotations

import hmac
import logging
from collections.abc import Collection, Mapping
from pathlib import Path

import trio

from gateway.access_tokens.roles import AccessRole
from gateway.access_tokens.tokens import TokenHolder, parse_token_line, read_holders
from gateway.system.files import FileSignature, file_signature
from gateway.tls.principal_rules import ANONYMOUS, DEFAULT_RULE, NoPrincipal, PrincipalRules

log = logging.getLogger("gateway.control")


class CredentialHolders:
    """
    Attributes:
        problem: what to add for a caller whose token isn't known: that the file can't be read; "": it can.
    """

    def __init__(
        self,
        tokens: Collection[str] = (),
        token_file: Path | None = None,
        principals: Mapping[str, AccessRole] | None = None,
        principal_rules: str = DEFAULT_RULE,
    ) -> None:
        """`tokens`: as lines of a token file. The file is read again when it changes, with the next request at the
        earliest.
        """
        self.problem = ""
        self._holders = tuple(map(parse_token_line, tokens))
        self._file = token_file
        self._principals = dict(principals or {})
        self._rules = PrincipalRules(principal_rules)
        self._file_signature: FileSignature | None = None  # the file that `_file_holders` was read from
        self._file_holders: tuple[TokenHolder, ...] = ()

    @property
    def has_tokens(self) -> bool:
        return bool(self._holders) or self._file is not None

    @property
    def has_credentials(self) -> bool:
        """Whether the configuration has credentials at all."""
        return self.has_tokens or bool(self._principals)

    async def find_by_digest(self, digest: bytes) -> TokenHolder | None:
        """The holder of the token with this SHA-256."""
        found = None
        # All of them: the time this takes says nothing about any token.
        for holder in self._holders + await self._read_file():
            if hmac.compare_digest(digest, holder.digest):
                found = holder
        return found

    def role_of_certificate(self, certificate: bytes) -> tuple[str, AccessRole]:
        """The principal that a client certificate (X.509 in DER, verified) makes, and its role; NONE: it has none.

        Raises:
            NoPrincipal: it makes none.
        """
        principal = self._rules.principal_of(certificate)
        return principal, AccessRole.NONE if principal == ANONYMOUS else self._principals.get(
            principal, AccessRole.NONE
        )

    async def _read_file(self) -> tuple[TokenHolder, ...]:
        if self._file is None:
            return ()
        return await trio.to_thread.run_sync(self._load_file, self._file)

    def _load_file(self, path: Path) -> tuple[TokenHolder, ...]:
        try:
            seen = file_signature(path)
            if seen is None or seen != self._file_signature:
                self._file_holders, self._file_signature = read_holders(path), seen
                self._record_problem("")
        except (OSError, ValueError) as error:
            self._file_holders, self._file_signature = (), None
            self._record_problem(f"{path}: {(error.strerror if isinstance(error, OSError) else None) or error}")
        return self._file_holders

    def _record_problem(self, problem: str) -> None:
        text = ", as the token file can't be read" if problem else ""
        if problem and not self.problem:
            log.warning("admin.token_file: %s: no token of it is valid", problem)
        elif self.problem and not problem:
            log.info("admin.token_file can be read again")
        self.problem = text


__all__ = ["CredentialHolders", "NoPrincipal"]
