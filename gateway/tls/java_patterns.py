# Patterns of java.util.regex, written for RE2: operators bring the patterns that their brokers have, and RE2 matches
# any text in linear time.
#
# Only what means the same in both is taken, and is spelled out where their short forms differ (Java's \s has one
# character more); all else is refused by name rather than understood nearly. In texts with line terminators `.` and `$`
# differ, so those must not come to the result.

from __future__ import annotations

from typing import Any, Final, NamedTuple

import re2

LINE_TERMINATORS: Final = frozenset("\n\r\u0085\u2028\u2029")  # Java's
MAX_PATTERN: Final = 2000  # characters
_REPEATS: Final = "*+?{"
_CLASSES: Final = {
    "d": "0-9",
    "D": r"\x00-\x2f\x3a-\x{10ffff}",
    "w": "0-9A-Z_a-z",
    "W": r"\x00-\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\x{10ffff}",
    "s": r"\x09-\x0d\x20",
    "S": r"\x00-\x08\x0e-\x1f\x21-\x{10ffff}",
}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ANCHORS: Final = {"A": "^", "z": "$", "Z": "$"}
_IN_GROUP: Final = {
    "(?=": "lookahead",
    "(?!": "negative lookahead",
    "(?<=": "lookbehind",
    "(?<!": "negative lookbehind",
    "(?>": "an atomic group",
}


class PatternError(ValueError):
    """The pattern can't be used; the text is one line."""


def compile_java(pattern: str) -> Any:
    """A compiled RE2 pattern; texts may be bytes in UTF-8, without line terminators.

    Raises:
        PatternError: Java refuses it, or it has a part that RE2 doesn't, or not in the same sense.
    """
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"{len(pattern)} characters, {MAX_PATTERN} are the most")
    reader = _Reader(pattern)
    text = reader.alternatives().text
    if reader.at < len(pattern):
        raise PatternError(") without its (")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise PatternError("too large, or more than 1000 repetitions") from error


class _Part(NamedTuple):
    text: str  # RE2's
    may_be_empty: bool = False


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._names: set[str] = set()
        self.at = 0

    def alternatives(self) -> _Part:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return _Part("|".join(part.text for part in parts), any(part.may_be_empty for part in parts))

    def _sequence(self) -> _Part:
        parts = []
        while self.at < len(self._pattern) and self._pattern[self.at] not in "|)":
            parts.append(self._repeated())
        return _Part("".join(part.text for part in parts), all(part.may_be_empty for part in parts))

    def _repeated(self) -> _Part:
        first = self._pattern[self.at]
        atom = self._atom()
        begin = self.at
        if self._peek() not in _REPEATS or not self._peek():
            return atom
        if atom.text in ("^", "$"):
            raise PatternError(f"{self._peek()} behind {first}, where nothing can be repeated")
        count = self._count()
        if count != "?" and atom.may_be_empty:  # which of several empty ones a group has is nowhere defined
            raise PatternError(f"{count} behind a group that may be empty")
        self._take("?")
        if self._peek() == "+":
            raise PatternError(f"{self._pattern[begin : self.at + 1]}: possessive quantifiers are Java's only")
        if self._peek() in _REPEATS and self._peek():
            raise PatternError(f"{self._pattern[begin : self.at + 1]}: two quantifiers")
        is_optional = count in ("*", "?") or count.startswith("{0")
        return _Part(atom.text + self._pattern[begin : self.at], atom.may_be_empty or is_optional)

    def _count(self) -> str:
        if not self._take("{"):
            self.at += 1
            return self._pattern[self.at - 1]
        end = self._pattern.find("}", self.at)
        numbers = self._pattern[self.at : end].split(",") if end > 0 else []
        if (
            not 1 <= len(numbers) <= 2
            or not _is_number(numbers[0])
            or not (numbers[-1] == "" or _is_number(numbers[-1]))
        ):
            raise PatternError("{ that begins no number of repetitions: write \\{ for the character itself")
        if numbers[-1] and int(numbers[0]) > int(numbers[-1]):
            raise PatternError(f"{{{','.join(numbers)}}}: the first number is the greater one")
        self.at = end + 1
        return "{" + ",".join(numbers) + "}"

    def _atom(self) -> _Part:
        char = self._next()
        match char:
            case "(":
                return self._group()
            case "[":
                return _Part(self._class())
            case "\\":
                return self._escape()
            case ".":
                return _Part("[^\\n]")
            case "^" | "$":
                return _Part(char, may_be_empty=True)
            case "*" | "+" | "?" | "{":
                raise PatternError(f"{char} with nothing before it: write \\{char} for the character itself")
        return _Part(_literal(char))

    def _group(self) -> _Part:
        opening = "("
        if self._take("?"):
            opening = self._opening()
        inner = self.alternatives()
        if not self._take(")"):
            raise PatternError("( without its )")
        return _Part(f"{opening}{inner.text})", inner.may_be_empty)

    def _opening(self) -> str:
        if self._take(":"):
            return "(?:"
        rest = self._pattern[self.at - 2 :]
        for begin, name in _IN_GROUP.items():
            if rest.startswith(begin):
                raise PatternError(f"{begin}: {name} is Java's only")
        name, end, _ = rest[3:].partition(">")
        if not rest.startswith("(?<") or not end or not (name.isascii() and name.isalnum() and name[0].isalpha()):
            raise PatternError(
                f"{rest[:4]}: of groups with ? only (?:…) and (?<name>…) are known; for case, write /L or /U"
            )
        if name in self._names:
            raise PatternError(f"(?<{name}>…) is there twice")
        self._names.add(name)
        self.at += len(name) + 2
        return f"(?P<{name}>"

    def _escape(self) -> _Part:
        char = self._next()
        if char in _CLASSES:
            return _Part(f"[{_CLASSES[char]}]")
        if char in _ANCHORS:
            return _Part(_ANCHORS[char], may_be_empty=True)
        return _Part(_literal(self._escaped(char)))

    def _escaped(self, char: str) -> str:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char.isascii() and char.isalnum():
            what = "references to groups are" if char.isdigit() else "is"
            raise PatternError(f"\\{char}: {what} Java's only, or of another meaning there")
        return char

    def _class(self) -> str:
        made = ["[^" if self._take("^") else "["]
        if self._peek() == "]":
            raise PatternError("[]: write \\] for the character itself")
        while not self._take("]"):
            made.append(self._class_item())
        return "".join(made) + "]"

    def _class_item(self) -> str:
        char = self._next()
        if char == "[":
            raise PatternError("[ in a class: unions are Java's only: write \\[ for the character itself")
        if char == "&" and self._peek() == "&":
            raise PatternError("&& in a class: intersections are Java's only: write \\& for the character itself")
        if char == "\\":
            char = self._next()
            if char in _CLASSES:
                if self._peek() == "-" and self._pattern[self.at : self.at + 2] != "-]":
                    raise PatternError(f"\\{char}- in a class: write \\- for the character itself")
                return _CLASSES[char]
            char = self._escaped(char)
        following = self._pattern[self.at : self.at + 2]
        if not following.startswith("-") or following == "-]":
            return _literal(char)
        self.at += 1
        last = self._next()
        if last == "\\":
            last = self._next()
            if last in _CLASSES:
                raise PatternError(f"{char}-\\{last} is no range")
            last = self._escaped(last)
        elif last in "[&":
            raise PatternError(f"{char}-{last} in a class: write \\{last} for the character itself")
        if last < char:
            raise PatternError(f"{char}-{last}: the first character is the greater one")
        return f"{_literal(char)}-{_literal(last)}"

    def _peek(self) -> str:
        return self._pattern[self.at : self.at + 1]

    def _take(self, char: str) -> bool:
        is_there = self._peek() == char
        self.at += is_there
        return is_there

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise PatternError("ends too early")
        self.at += 1
        return char


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4


def _literal(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"
