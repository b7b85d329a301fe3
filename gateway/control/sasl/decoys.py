# Records for names that no user has, which clients can't distinguish from users' records: salts and iterations as users
# have them, in the same mixture, and always the same for one name. The users of a file are known. Of a command's users,
# only those are known whom it was asked about: the shapes of their records are kept in a file, since a decoy must not
# change when the gateway starts again.
#
# Knows no exchange and no password.

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.control.sasl.credentials import Records
from protocol.authentication.scram import (
    HASHES,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    RecordShape,
    ScramRecord,
    make_decoy,
    shape_of,
)

log = logging.getLogger("gateway.authentication")

MAX_PROFILES: Final = 64  # that are distinguished, the most frequent ones: each costs 5 us of every step
_MAX_SALT: Final = 1024

Profile = tuple[tuple[str, RecordShape], ...]  # of one user's records: mechanism and shape, in the order of HASHES
_USUAL: Final[Profile] = tuple((mechanism, RecordShape()) for mechanism in HASHES)


class DecoyRecords:
    """Records for users that don't exist, so that clients can't find out who does. `key`: a secret. `memory`: the file
    that keeps the profiles of a command's users; None: nothing is kept.
    """

    def __init__(self, key: bytes, memory: Path | None = None) -> None:
        self._key = key
        self._memory = memory
        self._users: Mapping[str, Records] = {}  # the file's
        self._learned_profiles = _read_memory(memory) if memory is not None else {}
        self._profiles: Mapping[Profile, int] = {}
        self._count_profiles()

    def set_users(self, users: Mapping[str, Records]) -> None:
        """Set the users of the file; the same mapping again costs nothing."""
        if users is not self._users:
            self._users = users
            self._count_profiles()

    def learn_profile(self, records: Records) -> None:
        """Learn from a user's records, which the command returned."""
        profile = _profile_of(records)
        if profile not in self._learned_profiles and len(self._learned_profiles) < MAX_PROFILES:
            self._learned_profiles[profile] = 1
            self._count_profiles()
            self._write_memory()

    def decoy_mechanisms(self, name: str) -> list[str]:
        """The mechanisms for which that user, if it existed, would have records."""
        return [mechanism for mechanism, _ in self._rank_profiles(name)[0]]

    def decoy_record(self, name: str, mechanism: str) -> ScramRecord:
        """That user's record, if it existed."""
        profiles = [dict(profile) for profile in self._rank_profiles(name)]
        shape = next((profile[mechanism] for profile in profiles if mechanism in profile), RecordShape())
        return make_decoy(HASHES[mechanism], self._key, name, shape)

    def _rank_profiles(self, name: str) -> list[Profile]:
        """All profiles, by weighted rendezvous hashing: each is the first for as many names as its users are, and when
        users come or go, few names get another.
        """
        return sorted(
            self._profiles, key=lambda profile: self._profile_distance(name, profile) / self._profiles[profile]
        )

    def _profile_distance(self, name: str, profile: Profile) -> float:
        """Distributed exponentially."""
        text = json.dumps([name, profile]).encode()
        digest = hashlib.blake2b(text, digest_size=8, key=self._key, person=b"profile").digest()
        return -math.log((int.from_bytes(digest, "big") + 1) / (2**64 + 1))

    def _count_profiles(self) -> None:
        counts = Counter(self._learned_profiles)
        counts.update(_profile_of(records) for records in self._users.values())
        self._profiles = dict(counts.most_common(MAX_PROFILES)) or {_USUAL: 1}

    def _write_memory(self) -> None:
        if self._memory is None:
            return
        fresh = self._memory.with_name(f"{self._memory.name}.new")
        try:
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(list(self._learned_profiles), file)
            fresh.replace(self._memory)
        except OSError as error:
            log.warning("authentication: %s: %s", self._memory, error.strerror or error)


def _profile_of(records: Records) -> Profile:
    return tuple((mechanism, shape_of(records[mechanism])) for mechanism in HASHES if mechanism in records)


def _read_memory(path: Path) -> dict[Profile, int]:
    """Empty where the file can't be used: it fills again as users authenticate."""
    try:
        given = json.loads(path.read_text())
        profiles = [tuple((str(name), RecordShape(*map(int, shape))) for name, shape in profile) for profile in given]
    except (OSError, ValueError, TypeError):
        return {}
    return {
        profile: 1 for profile in profiles[:MAX_PROFILES] if profile and all(_is_possible(*each) for each in profile)
    }


def _is_possible(mechanism: str, shape: RecordShape) -> bool:
    has_both = 0 <= shape.salt_bytes <= _MAX_SALT and MIN_ITERATIONS <= shape.iterations <= MAX_ITERATIONS
    return has_both and mechanism in HASHES
