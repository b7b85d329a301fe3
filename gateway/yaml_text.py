# The one reader of YAML, for the configuration, policy documents and the volume agent's file: text to data, a refusal
# with its line, and the lines of what was read. A key that is given twice is refused: YAML forbids it, and PyYAML would
# silently take the last one. So are aliases (*name) that make much of little text: PyYAML keeps one object for all of
# them, but whoever walks through the data meets it each time. So are, in files of ours, numbers that
# YAML's versions read differently: 010 is 8 in YAML 1.1, which PyYAML reads, and 10 in YAML 1.2; 1:30 is 90, or text.
#
# A refusal repeats no value and no name of an alias or a tag: a password without quotes may begin with * or !.
#
# Uses libyaml where PyYAML was built with it, as its wheels are: five times as fast on 10,000 client quotas. Knows no
# key.

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import yaml

STDIN_NAME: Final = "standard input"
_MERGE: Final = "tag:yaml.org,2002:merge"  # <<
_SIGNS: Final = {"tag": "! for a", "alias": "* for an", "anchor": "& for an"}
_DECIMAL: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
# How many keys and values aliases may add: so many, or so many for each one that the text has.
MAX_ADDED: Final = 100_000
MAX_ADDED_EACH: Final = 10


class YamlError(Exception):
    """It can't be read. One line that says where and why."""


class _YamlLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # where it is there
    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._tags: dict[tuple[str, tuple[bool, bool]], str] = {}
        self._aliases = "*" in stream
        self._own_keys: dict[yaml.Node, list[yaml.Node]] = {}  # of what has a <<: without those of it

    def get_single_node(self) -> yaml.Node | None:
        return self._bound_aliases(super().get_single_node())

    def get_node(self) -> yaml.Node | None:
        return self._bound_aliases(super().get_node())

    def _bound_aliases(self, root: yaml.Node | None) -> yaml.Node | None:
        if root is None or not self._aliases:
            return root
        sizes: dict[yaml.Node, int] = {}
        _count_nodes(root, sizes)
        most = len(sizes) + max(MAX_ADDED, MAX_ADDED_EACH * len(sizes))
        too_large = [node for node, size in sizes.items() if size > most]
        if too_large:
            node = min(too_large, key=sizes.__getitem__)
            raise yaml.MarkedYAMLError(
                None,
                None,
                f"with its aliases (*name) this has {sizes[node]:,} keys and values: in a text with {len(sizes):,} of "
                f"its own at most {most:,} are read; write values out instead of aliases of aliases",
                node.start_mark,
            )
        return root

    def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
        """The same, of each text once: most are keys, which come again with each entry of a list."""
        if kind is not yaml.ScalarNode:
            return str(super().resolve(kind, value, implicit))
        tag = self._tags.get((value, implicit))
        if tag is None:
            tag = self._tags[value, implicit] = super().resolve(kind, value, implicit)
        return tag

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if node in self._own_keys:  # flattened for a << of it, which is made before what is deeper in the text
            return
        own = [key for key, _ in node.value if key.tag != _MERGE]
        seen: set[str] = set()
        for key in own:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(None, None, f"{key.value} is there twice", key.start_mark)
                seen.add(key.value)
        if len(own) < len(node.value):
            self._own_keys[node] = own
        super().flatten_mapping(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        made: dict[Hashable, Any] = super().construct_mapping(node, deep)
        own = self._own_keys.get(node)
        if own is not None or len(made) < len(node.value):
            self._refuse_equal_keys([key for key, _ in node.value] if own is None else own)
        return made

    def _refuse_equal_keys(self, keys: list[yaml.Node]) -> None:
        """Spelled in two ways, keys may be one value, as 1 and 1.0 are, or null and ~."""
        seen: dict[Hashable, str] = {}
        for key in keys:
            value = self.construct_object(key, deep=True)
            if value in seen:
                text = f"{key.value} is there twice: it is the same as {seen[value]}"
                raise yaml.MarkedYAMLError(None, None, text, key.start_mark)
            seen[value] = key.value


def _checked(kind: str) -> Callable[[_YamlLoader, yaml.ScalarNode], Any]:
    """PyYAML's own constructor of that kind of value: its errors (2026-13-45, !!int x) are those of Python's types."""
    construct = _YamlLoader.yaml_constructors[f"tag:yaml.org,2002:{kind}"]

    def construct_value(loader: _YamlLoader, node: yaml.ScalarNode) -> Any:
        try:
            return construct(loader, node)
        except (ValueError, LookupError, AttributeError, OverflowError):
            text = f"YAML takes this for a value of the type {kind}, which it can't be: put text in quotes"
            raise yaml.MarkedYAMLError(None, None, text, node.start_mark) from None

    return construct_value


for _kind in ("bool", "int", "float", "timestamp"):
    _YamlLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _checked(_kind))


class _StrictLoader(_YamlLoader):
    """Of files of ours. Others' have modes such as 0644, which are meant to be octal."""


def _checked_number(kind: str) -> Callable[[_YamlLoader, yaml.ScalarNode], Any]:
    construct = _YamlLoader.yaml_constructors[f"tag:yaml.org,2002:{kind}"]

    def construct_number(loader: _YamlLoader, node: yaml.ScalarNode) -> Any:
        text = loader.construct_scalar(node)
        if ":" in text or (kind == "int" and not _DECIMAL.fullmatch(text)):
            what = "YAML takes this for a number whose value depends on YAML's version (a leading 0, 0x, _ or :)"
            what = f"{what}: write decimal digits, or put text in quotes"
            raise yaml.MarkedYAMLError(None, None, what, node.start_mark)
        return construct(loader, node)

    return construct_number


for _kind in ("int", "float"):
    _StrictLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _checked_number(_kind))


def _count_nodes(node: yaml.Node, sizes: dict[yaml.Node, int]) -> int:
    """How many keys and values are in it, itself among them, those of an alias each time that it is used. `sizes` gets
    them for each node in it.

    Raises:
        MarkedYAMLError: it is in itself.
    """
    size = sizes.get(node)
    if size is None:
        sizes[node] = 0  # not known yet
        pairs = isinstance(node, yaml.MappingNode)
        inner = [each for pair in node.value for each in pair] if pairs else node.value
        size = 1 + (0 if isinstance(node, yaml.ScalarNode) else sum(_count_nodes(each, sizes) for each in inner))
        sizes[node] = size
    elif not size:
        raise yaml.MarkedYAMLError(None, None, "an alias (*name) refers to a node that contains it", node.start_mark)
    return size


def read_text(path: Path) -> str:
    """The file's text.

    Raises:
        YamlError: it can't be read, or is not text.
    """
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise YamlError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise YamlError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from error


def read_input(name: str) -> str:
    """The text of the file of that name; "-": of standard input, which is UTF-8 whatever the locale says.

    Raises:
        YamlError: it can't be read, or is not text.
    """
    if name != "-":
        return read_text(Path(name))
    try:
        return sys.stdin.buffer.read().decode()
    except OSError as error:
        raise YamlError(f"{STDIN_NAME}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise YamlError(f"{STDIN_NAME}: not UTF-8 text: {error.reason} at byte {error.start}") from error


def load_yaml(text: str, source: str) -> Any:
    """The data. `source` stands before the fault.

    Raises:
        YamlError: the text is not one document of YAML, a key is given twice, or its aliases make too much of it.
    """
    return _load_checked(text, source, lambda: yaml.load(text, Loader=_StrictLoader))  # noqa: S506  a SafeLoader


def load_all_yaml(text: str, source: str) -> list[Any]:
    """The data of each document in the text.

    Raises:
        YamlError: as of `load_yaml`.
    """
    return list(_load_checked(text, source, lambda: list(yaml.load_all(text, Loader=_YamlLoader))))


def _load_checked(text: str, source: str, reading: Callable[[], Any]) -> Any:
    try:
        return reading()
    except yaml.MarkedYAMLError as error:
        line, what = _describe_fault(_find_yaml_fault(text) or error)
        raise YamlError(f"{source}{line}: {what}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise YamlError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from error


def _find_yaml_fault(text: str) -> yaml.MarkedYAMLError | None:
    """The fault that PyYAML's own parser finds: libyaml's words are fewer, and its line may be the next one."""
    try:
        list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        return error
    except (yaml.YAMLError, RecursionError):
        pass
    return None


def _describe_fault(error: yaml.MarkedYAMLError) -> tuple[str, str]:
    """The place, and what is wrong there: for common slips in words of our own, since PyYAML's are its grammar's."""
    what, context = error.problem or "not valid YAML", error.context or ""
    at = error.problem_mark.line + 1 if error.problem_mark else 0
    begin = error.context_mark.line + 1 if error.context_mark else at
    if "'" in what and any(kind in what for kind in _SIGNS):
        meant = next(kind for kind in _SIGNS if kind in what)
        what = f"YAML takes what begins with {_SIGNS[meant]} {meant}, and this is none: put text in quotes"
    elif "quoted scalar" in context and "end of stream" in what:
        return f":{begin}", "a quotation mark is opened here and never closed"
    if "'\\t'" in what:
        what = "a tab: YAML is indented by spaces"
    elif context.startswith("while parsing a flow ") and begin != at:
        what += f": is the bracket closed that line {begin} opens?"
    elif what == "mapping values are not allowed here":
        what += ": text with a colon and a space in it needs quotes, and keys of one section the same indent"
    return f":{at}" if at else "", what


class YamlLines:
    """The lines of a text's keys and values, by their paths: keys, and indices of lists. A text that is not YAML has
    none but its first.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _root_node(self) -> yaml.Node | None:
        """Only where somebody asks: mostly nothing is wrong."""
        try:
            return yaml.compose(self._text, Loader=_YamlLoader)
        except (yaml.YAMLError, RecursionError):
            return None

    def find_line(self, path: Sequence[Hashable]) -> int:
        """Of the deepest part of the path that the text has, from 1."""
        return self._find_node(path)[1]

    def find_keys(self, path: Sequence[Hashable]) -> list[str]:
        """Of the mapping at that path, or the indices of the list there; none where there is neither."""
        node = self._find_node(path)[0]
        if isinstance(node, yaml.SequenceNode):
            return [str(index) for index in range(len(node.value))]
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        return [key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode)]

    def _find_node(self, path: Sequence[Hashable]) -> tuple[yaml.Node | None, int]:
        """The node at that path, None if the text has none, and the line."""
        node = self._root_node
        line = node.start_mark.line if node is not None else 0
        for part in path:
            if isinstance(node, yaml.SequenceNode) and str(part).isdigit() and int(str(part)) < len(node.value):
                node = node.value[int(str(part))]
                line = node.start_mark.line
                continue
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()
            found = next((pair for pair in pairs if pair[0].value == str(part)), None)
            if found is None:
                return None, line + 1
            line, node = found[0].start_mark.line, found[1]
        return node, line + 1
