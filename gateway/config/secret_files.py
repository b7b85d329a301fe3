# Secrets that stand in files of their own: {file: /run/secrets/password} in place of the text, for librdkafka's
# properties, the passwords of listeners' keys, and admin tokens. The file is read when the configuration is.

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway.config.clients import CLIENT_PROPERTIES

_LISTS: Final = ("tokens",)  # of secrets


class Fault(NamedTuple):
    """`place`: of the key, in the data."""

    place: tuple[Any, ...]
    text: str


class SecretFiles:
    """
    Attributes:
        files: those that were read, or could not be.
        faults: what is wrong with some.
    """

    def __init__(self) -> None:
        self.files: tuple[Path, ...] = ()
        self.faults: list[Fault] = []

    def resolve(self, data: Mapping[Any, Any]) -> dict[Any, Any]:
        """The data with their contents; a key whose file can't be used is left out."""
        return {key: value for key, value in self._pairs(data, ()) if value is not _FAULTY}

    def _pairs(self, data: Mapping[Any, Any], place: tuple[Any, ...]) -> list[tuple[Any, Any]]:
        return [(key, self._resolved(key, value, (*place, key))) for key, value in data.items()]

    def _resolved(self, key: Any, value: Any, place: tuple[Any, ...]) -> Any:
        if isinstance(value, dict):
            if set(value) == {"file"} and isinstance(value["file"], str) and _may_be_secret(place):
                return self._read(Path(value["file"]), place)
            return {each: inner for each, inner in self._pairs(value, place) if inner is not _FAULTY}
        if isinstance(value, list) and key in _LISTS:
            found = [self._resolved(index, inner, (*place, index)) for index, inner in enumerate(value)]
            return [inner for inner in found if inner is not _FAULTY]
        return value

    def _read(self, path: Path, place: tuple[Any, ...]) -> Any:
        self.files = (*self.files, path)
        try:
            text = path.read_text("utf-8").rstrip("\r\n")
        except OSError as error:
            why = f"can't be read: {error.strerror}"
        except UnicodeDecodeError:
            why = "is not UTF-8 text"
        else:
            if text:
                return text
            why = "is empty"
        self.faults.append(Fault(place, f"{'.'.join(map(str, place))}: file {path} {why}"))
        return _FAULTY


_FAULTY: Final = object()


def _may_be_secret(place: tuple[Any, ...]) -> bool:
    key = str(place[-1])
    return key.startswith(CLIENT_PROPERTIES) or (len(place) > 1 and place[-2] in _LISTS)
