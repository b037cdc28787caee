"""A YAML file as plain data that remembers on which line everything stood.

Scenario files come from anywhere, so the reader is strict: UTF-8, one document, no tags, no duplicate
keys, bounded size, depth and number of values (an alias bomb unfolds to billions).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    ScalarEvent,
)
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from testbed.errors import Problem, ScenarioError

MAX_FILE_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 20
MAX_VALUES: Final = 20_000
MAX_PROBLEMS: Final = 50
"""More than this and the file is something else than a scenario."""

Data: TypeAlias = Any
"""dict, list, str, int, float, bool or None: what YAML holds, checked by the model only."""
KeyPath: TypeAlias = tuple[str | int, ...]

_TAG: Final = "tag:yaml.org,2002:"
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


@dataclass
class Source:
    """The data of one file, and where each value comes from."""

    file: str
    """As the user named it."""
    text: bytes
    data: Data
    lines: dict[KeyPath, int] = field(default_factory=dict)
    options: dict[KeyPath, str] = field(default_factory=dict)
    """Values that a command-line option replaced, with that option."""

    def line(self, path: KeyPath) -> int:
        """Line of the value at `path`, or of the innermost value around it."""
        return next((self.lines[p] for p in _inside_out(path) if p in self.lines), 1)

    def where(self, path: KeyPath) -> str:
        """`file:line: link.a_to_b.rate`, or the option that set the value."""
        dotted = ".".join(str(part) for part in path)
        for prefix in _inside_out(path):
            if prefix in self.options:
                return f"{self.options[prefix]}: {dotted}"
        place = f"{self.file}:{self.line(path)}"
        return f"{place}: {dotted}" if dotted else place


def read_source(path: Path) -> Source:
    """Read a file; raises ScenarioError with every problem of the file as YAML."""
    name = str(path)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ScenarioError(Problem(name, "there is no such file")) from None
    except IsADirectoryError:
        raise ScenarioError(Problem(name, "is a directory", "a scenario file (YAML)")) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ScenarioError(Problem(name, f"cannot be read: {reason}")) from None
    if len(text) > MAX_FILE_BYTES:
        raise ScenarioError(Problem(name, f"is larger than {MAX_FILE_BYTES // 1024} KiB", "a scenario file"))
    return parse_source(name, text)


def parse_source(name: str, text: bytes) -> Source:
    """Parse the text of a file called `name`."""
    try:
        characters = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{text[error.start]:02x} is not UTF-8"
        raise ScenarioError(Problem(f"{name}:{line}", found, "a text file in UTF-8")) from None
    root = _compose(name, characters)
    reader = _Reader(Source(name, text, None))
    if root is not None:
        reader.source.data = reader.value(root, ())
    if reader.problems:
        raise ScenarioError(*reader.problems)
    if root is None:
        raise ScenarioError(Problem(name, "the file is empty", "a scenario (YAML); see scenarios/"))
    return reader.source


def parse_value(option: str, text: str) -> Data:
    """The value of a `--set` option: any YAML, usually a scalar."""
    try:
        return parse_source(option, text.encode("utf-8", "surrogateescape")).data if text.strip() else ""
    except ScenarioError as error:
        problems = (Problem(option, p.found, p.allowed, p.next_step) for p in error.problems)
        raise ScenarioError(*problems) from None


def _compose(name: str, text: str) -> Node | None:
    """The node tree, after a look at the flat stream of events, which no nesting can exhaust."""
    yaml = YAML(typ="safe", pure=True)
    try:
        _refuse_oddities(name, yaml.parse(io.StringIO(text)))
        root: Node | None = YAML(typ="safe", pure=True).compose(io.StringIO(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}" if mark else name
        parts = [part for part in (error.context, error.problem) if part]
        raise ScenarioError(Problem(place, f"not valid YAML: {', '.join(parts)}")) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        found = f"character U+{error.character:04X} is not allowed in YAML"
        raise ScenarioError(Problem(f"{name}:{line}", found)) from None
    except (YAMLError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ScenarioError(Problem(name, f"not valid YAML: {reason}")) from None
    return root


def _refuse_oddities(name: str, events: Iterator[Any]) -> None:
    """What no scenario needs: endless nesting, masses of values, several documents, tags, reused anchors."""
    depth = values = documents = 0
    anchors: set[str] = set()
    for event in events:
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        documents += isinstance(event, DocumentStartEvent)
        values += isinstance(event, CollectionStartEvent | ScalarEvent)
        tag = getattr(event, "tag", None)
        anchor = None if isinstance(event, AliasEvent) else getattr(event, "anchor", None)
        trouble = None
        if depth > MAX_DEPTH:
            trouble = ("nested too deeply", f"at most {MAX_DEPTH} levels")
        elif values > MAX_VALUES:
            trouble = ("too many values", f"at most {MAX_VALUES}")
        elif documents > 1:
            trouble = ("a second YAML document", "one document in a file")
        elif tag is not None:
            trouble = (f"the tag {tag} is not allowed", "values without tags")
        elif isinstance(event, ScalarEvent) and _SURROGATE.search(event.value):
            trouble = ("half of a surrogate pair is no character", "the character itself, in UTF-8")
        elif anchor in anchors:
            trouble = (f"the anchor {anchor} stands here twice", "each anchor once")
        if trouble:
            raise ScenarioError(Problem(f"{name}:{event.start_mark.line + 1}", *trouble))
        anchors.update(() if anchor is None else (anchor,))


class _Reader:
    """Turns nodes into plain values, noting lines and problems on the way."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self._values = 0
        self._scalars = YAML(typ="safe", pure=True).constructor

    def value(self, node: Node, path: KeyPath) -> Data:
        self._values += 1
        if self._values > MAX_VALUES or len(path) > MAX_DEPTH:
            raise ScenarioError(
                Problem(
                    f"{self.source.file}:{node.start_mark.line + 1}",
                    "aliases unfold to too many values",
                    f"at most {MAX_VALUES}",
                )
            )
        self.source.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        return self._scalar(node)

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Data]:
        result: dict[str, Data] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode) or not key_node.value:
                self._note(path, line, "a key that is no name", "plain names as keys")
                continue
            key = str(key_node.value)
            inner = (*path, key)
            if key in result:
                first = self.source.lines[inner]
                self._note(
                    inner, line, f"the key {key} stands here twice, first on line {first}", "one of them"
                )
                continue
            self.source.lines[inner] = line
            result[key] = self.value(value_node, inner)
        return result

    def _scalar(self, node: ScalarNode) -> Data:
        """Numbers, booleans and null as such; everything else is text, dates too."""
        try:
            match str(node.tag).removeprefix(_TAG):
                case "null":
                    return None
                case "bool":
                    return self._scalars.construct_yaml_bool(node)
                case "int":
                    number: int = self._scalars.construct_yaml_int(node)
                    str(number)  # ValueError of one that is too long to be shown
                    return number
                case "float":
                    return self._scalars.construct_yaml_float(node)
                case _:
                    return str(node.value)
        except (ValueError, KeyError):
            return str(node.value)

    def _note(self, path: KeyPath, line: int, found: str, allowed: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            dotted = ".".join(str(part) for part in path)
            place = f"{self.source.file}:{line}"
            self.problems.append(Problem(f"{place}: {dotted}" if dotted else place, found, allowed))


def _inside_out(path: KeyPath) -> Iterator[KeyPath]:
    for length in range(len(path), -1, -1):
        yield path[:length]
