# Secrets that stand in files of their own: {file: /run/secrets/password} in place of the text, for librdkafka's
# properties, the passwords of listeners' keys, and admin tokens. The file is read when the configuration is.

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway.config.sections.clients import CLIENT_PROPERTIES

_SECRET_LISTS: Final = ("tokens",)  # of secrets


class SecretFault(NamedTuple):
    """`key_path`: of the key, in the data."""

    key_path: tuple[Any, ...]
    text: str


class SecretFiles:
    """
    Attributes:
        files: those that were read, or could not be.
        faults: what is wrong with some.
    """

    def __init__(self) -> None:
        self.files: tuple[Path, ...] = ()
        self.faults: list[SecretFault] = []

    def resolve_secrets(self, data: Mapping[Any, Any]) -> dict[Any, Any]:
        """The data with their contents; a key whose file can't be used is left out."""
        return {key: value for key, value in self._resolve_pairs(data, ()) if value is not _FAULTY}

    def _resolve_pairs(self, data: Mapping[Any, Any], place: tuple[Any, ...]) -> list[tuple[Any, Any]]:
        return [(key, self._resolve_value(key, value, (*place, key))) for key, value in data.items()]

    def _resolve_value(self, key: Any, value: Any, place: tuple[Any, ...]) -> Any:
        if isinstance(value, dict):
            if set(value) == {"file"} and isinstance(value["file"], str) and _may_be_secret(place):
                return self._read_secret(Path(value["file"]), place)
            return {each: inner for each, inner in self._resolve_pairs(value, place) if inner is not _FAULTY}
        if isinstance(value, list) and key in _SECRET_LISTS:
            found = [self._resolve_value(index, inner, (*place, index)) for index, inner in enumerate(value)]
            return [inner for inner in found if inner is not _FAULTY]
        return value

    def _read_secret(self, path: Path, place: tuple[Any, ...]) -> Any:
        self.files = (*self.files, path)
        try:
            text = path.read_text("utf-8-sig").rstrip("\r\n")
        except OSError as error:
            why = f"can't be read: {error.strerror}"
        except UnicodeDecodeError:
            why = "is not UTF-8 text"
        else:
            if text:
                return text
            why = "is empty"
        self.faults.append(SecretFault(place, f"{'.'.join(map(str, place))}: file {path} {why}"))
        return _FAULTY


_FAULTY: Final = object()


def _may_be_secret(place: tuple[Any, ...]) -> bool:
    key = str(place[-1])
    return key.startswith(CLIENT_PROPERTIES) or (len(place) > 1 and place[-2] in _SECRET_LISTS)
