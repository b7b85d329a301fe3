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
_QUANTIFIERS: Final = "*+?{"
_CHARACTER_CLASSES: Final = {
    "d": "0-9",
    "D": r"\x00-\x2f\x3a-\x{10ffff}",
    "w": "0-9A-Z_a-z",
    "W": r"\x00-\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\x{10ffff}",
    "s": r"\x09-\x0d\x20",
    "S": r"\x00-\x08\x0e-\x1f\x21-\x{10ffff}",
}
_CONTROL_CHARS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ANCHORS: Final = {"A": "^", "z": "$", "Z": "$"}
_UNSUPPORTED_GROUPS: Final = {
    "(?=": "lookahead",
    "(?!": "negative lookahead",
    "(?<=": "lookbehind",
    "(?<!": "negative lookbehind",
    "(?>": "an atomic group",
}


class JavaPatternError(ValueError):
    """The pattern can't be used; the text is one line."""


def compile_java(pattern: str) -> Any:
    """A compiled RE2 pattern; texts may be bytes in UTF-8, without line terminators.

    Raises:
        JavaPatternError: Java refuses it, or it has a part that RE2 doesn't, or not in the same sense.
    """
    if len(pattern) > MAX_PATTERN:
        raise JavaPatternError(f"{len(pattern)} characters, {MAX_PATTERN} are the most")
    reader = _PatternReader(pattern)
    text = reader.read_alternatives().text
    if reader.position < len(pattern):
        raise JavaPatternError(") without its (")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise JavaPatternError("too large, or more than 1000 repetitions") from error


class _PatternPart(NamedTuple):
    text: str  # RE2's
    may_be_empty: bool = False


class _PatternReader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._group_names: set[str] = set()
        self.position = 0

    def read_alternatives(self) -> _PatternPart:
        parts = [self._read_sequence()]
        while self._accept_char("|"):
            parts.append(self._read_sequence())
        return _PatternPart("|".join(part.text for part in parts), any(part.may_be_empty for part in parts))

    def _read_sequence(self) -> _PatternPart:
        parts = []
        while self.position < len(self._pattern) and self._pattern[self.position] not in "|)":
            parts.append(self._read_repeated())
        return _PatternPart("".join(part.text for part in parts), all(part.may_be_empty for part in parts))

    def _read_repeated(self) -> _PatternPart:
        first = self._pattern[self.position]
        atom = self._read_atom()
        begin = self.position
        if self._peek_char() not in _QUANTIFIERS or not self._peek_char():
            return atom
        if atom.text in ("^", "$"):
            raise JavaPatternError(f"{self._peek_char()} behind {first}, where nothing can be repeated")
        count = self._read_quantifier()
        if count != "?" and atom.may_be_empty:  # which of several empty ones a group has is nowhere defined
            raise JavaPatternError(f"{count} behind a group that may be empty")
        self._accept_char("?")
        if self._peek_char() == "+":
            raise JavaPatternError(
                f"{self._pattern[begin : self.position + 1]}: possessive quantifiers are Java's only"
            )
        if self._peek_char() in _QUANTIFIERS and self._peek_char():
            raise JavaPatternError(f"{self._pattern[begin : self.position + 1]}: two quantifiers")
        is_optional = count in ("*", "?") or count.startswith("{0")
        return _PatternPart(atom.text + self._pattern[begin : self.position], atom.may_be_empty or is_optional)

    def _read_quantifier(self) -> str:
        if not self._accept_char("{"):
            self.position += 1
            return self._pattern[self.position - 1]
        end = self._pattern.find("}", self.position)
        numbers = self._pattern[self.position : end].split(",") if end > 0 else []
        if (
            not 1 <= len(numbers) <= 2
            or not _is_number(numbers[0])
            or not (numbers[-1] == "" or _is_number(numbers[-1]))
        ):
            raise JavaPatternError("{ that begins no number of repetitions: write \\{ for the character itself")
        if numbers[-1] and int(numbers[0]) > int(numbers[-1]):
            raise JavaPatternError(f"{{{','.join(numbers)}}}: the first number is the greater one")
        self.position = end + 1
        return "{" + ",".join(numbers) + "}"

    def _read_atom(self) -> _PatternPart:
        char = self._next_char()
        match char:
            case "(":
                return self._read_group()
            case "[":
                return _PatternPart(self._read_class())
            case "\\":
                return self._read_escape()
            case ".":
                return _PatternPart("[^\\n]")
            case "^" | "$":
                return _PatternPart(char, may_be_empty=True)
            case "*" | "+" | "?" | "{":
                raise JavaPatternError(f"{char} with nothing before it: write \\{char} for the character itself")
        return _PatternPart(_escape_literal(char))

    def _read_group(self) -> _PatternPart:
        opening = "("
        if self._accept_char("?"):
            opening = self._read_group_opening()
        inner = self.read_alternatives()
        if not self._accept_char(")"):
            raise JavaPatternError("( without its )")
        return _PatternPart(f"{opening}{inner.text})", inner.may_be_empty)

    def _read_group_opening(self) -> str:
        if self._accept_char(":"):
            return "(?:"
        rest = self._pattern[self.position - 2 :]
        for begin, name in _UNSUPPORTED_GROUPS.items():
            if rest.startswith(begin):
                raise JavaPatternError(f"{begin}: {name} is Java's only")
        name, end, _ = rest[3:].partition(">")
        if not rest.startswith("(?<") or not end or not (name.isascii() and name.isalnum() and name[0].isalpha()):
            raise JavaPatternError(
                f"{rest[:4]}: of groups with ? only (?:…) and (?<name>…) are known; for case, write /L or /U"
            )
        if name in self._group_names:
            raise JavaPatternError(f"(?<{name}>…) is there twice")
        self._group_names.add(name)
        self.position += len(name) + 2
        return f"(?P<{name}>"

    def _read_escape(self) -> _PatternPart:
        char = self._next_char()
        if char in _CHARACTER_CLASSES:
            return _PatternPart(f"[{_CHARACTER_CLASSES[char]}]")
        if char in _ANCHORS:
            return _PatternPart(_ANCHORS[char], may_be_empty=True)
        return _PatternPart(_escape_literal(self._unescape_char(char)))

    def _unescape_char(self, char: str) -> str:
        if char in _CONTROL_CHARS:
            return _CONTROL_CHARS[char]
        if char.isascii() and char.isalnum():
            what = "references to groups are" if char.isdigit() else "is"
            raise JavaPatternError(f"\\{char}: {what} Java's only, or of another meaning there")
        return char

    def _read_class(self) -> str:
        made = ["[^" if self._accept_char("^") else "["]
        if self._peek_char() == "]":
            raise JavaPatternError("[]: write \\] for the character itself")
        while not self._accept_char("]"):
            made.append(self._read_class_item())
        return "".join(made) + "]"

    def _read_class_item(self) -> str:
        char = self._next_char()
        if char == "[":
            raise JavaPatternError("[ in a class: unions are Java's only: write \\[ for the character itself")
        if char == "&" and self._peek_char() == "&":
            raise JavaPatternError("&& in a class: intersections are Java's only: write \\& for the character itself")
        if char == "\\":
            char = self._next_char()
            if char in _CHARACTER_CLASSES:
                if self._peek_char() == "-" and self._pattern[self.position : self.position + 2] != "-]":
                    raise JavaPatternError(f"\\{char}- in a class: write \\- for the character itself")
                return _CHARACTER_CLASSES[char]
            char = self._unescape_char(char)
        following = self._pattern[self.position : self.position + 2]
        if not following.startswith("-") or following == "-]":
            return _escape_literal(char)
        self.position += 1
        last = self._next_char()
        if last == "\\":
            last = self._next_char()
            if last in _CHARACTER_CLASSES:
                raise JavaPatternError(f"{char}-\\{last} is not a valid range")
            last = self._unescape_char(last)
        elif last in "[&":
            raise JavaPatternError(f"{char}-{last} in a class: write \\{last} for the character itself")
        if last < char:
            raise JavaPatternError(f"{char}-{last}: the first character is the greater one")
        return f"{_escape_literal(char)}-{_escape_literal(last)}"

    def _peek_char(self) -> str:
        return self._pattern[self.position : self.position + 1]

    def _accept_char(self, char: str) -> bool:
        is_there = self._peek_char() == char
        self.position += is_there
        return is_there

    def _next_char(self) -> str:
        char = self._peek_char()
        if not char:
            raise JavaPatternError("ends too early")
        self.position += 1
        return char


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4


def _escape_literal(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"
