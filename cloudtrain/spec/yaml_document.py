"""YAML files as plain values, each with its line and column.

The rules are YAML 1.2's (core schema): `yes`, `off` and `1:30` are strings, `1e-3` is a
number, `007` is seven. Numbers remember their text, so arguments arrive as typed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Any

import yaml

from cloudtrain.errors import Issue, Keys, SpecError
from cloudtrain_wire.secret_values import masker, secrets_in

MAX_NODES = 100_000
MAX_DEPTH = 50
MAX_SAFE_TEXT = 5_000
"""A shorter text cannot nest too deeply."""

_TOO_MUCH = "has too many or too deeply nested values (or an endless alias)"
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_REFUSED = r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
"""Characters that YAML does not allow unescaped."""

_CORE = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
"""Patterns of plain words that are not text, with their first letters."""


class WrittenInt(int):
    """A whole number that remembers its text, such as `007`."""

    text: str


class WrittenFloat(float):
    """A number that remembers its text, such as `1.10`."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """Values with the origin of each value and key: `job.yaml:7:3`, `--set a.b=c`."""

    values: dict[str, Any]
    origins: dict[Keys, str] = field(default_factory=dict)
    name: str = "job.yaml"
    text: str = ""
    """Original text, before any override."""
    overrides: tuple[str, ...] = ()
    """`--set` texts that are applied."""
    mistakes: tuple[Issue, ...] = ()
    """Mistakes in the overrides themselves, reported with the spec's mistakes."""

    def origin(self, keys: Keys) -> str:
        """Return the position of a value, or of the section around it, or the file name."""
        if not keys:
            return self.origins.get((), self.name)
        while keys and keys not in self.origins:
            keys = keys[:-1]

        if not keys:
            return self.name

        return self.origins[keys]


def parse_document(text: str, *, name: str) -> Document:
    """Parse a YAML mapping. Raise SpecError with all mistakes."""
    try:
        root = _compose(text)
    except yaml.MarkedYAMLError as error:
        raise SpecError([_syntax_issue(error, text, name)]) from None
    except yaml.YAMLError:
        raise SpecError([_character_issue(text, name)]) from None

    if root is None:
        hint = "run cloudtrain init for a starter file"
        raise SpecError([Issue((), "is empty", hint, origin=f"{name}:1:1")])

    walk = _Walk(name)
    values = walk.value(root, ())
    if not walk.issues and not isinstance(values, dict):
        where = f"{name}:{root.start_mark.line + 1}:{root.start_mark.column + 1}"
        message = f"expected a mapping (key: value), got {kind_of(values)}"
        hint = "a job has `entrypoint: train.py`; for another kind of program also `launcher: none`"
        walk.issues.append(Issue((), message, hint, origin=where))

    if walk.issues:
        raise SpecError(walk.issues)

    return Document(
        values=values,
        origins=walk.origins,
        name=name,
        text=text,
    )


def parse_scalar(text: str) -> Any:
    """Parse the value of `--set key=TEXT` or of a variable: one line of YAML."""
    try:
        root = _compose(text)
    except yaml.YAMLError:
        return text

    if root is None:
        return text.strip()

    # YAML drops comments, as in `#fff` or `a #1`. The user typed them as a value.
    is_plain = isinstance(root, yaml.ScalarNode) and not root.style
    if is_plain and root.value != text.strip():
        return text.strip()

    walk = _Walk("")
    value = walk.value(root, ())
    return text if walk.issues else value


def kind_of(value: Any) -> str:
    """Return a value for a message: `'two'`, `a list`, `a mapping`, `nothing`."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()

    text = masker.mask_text(getattr(value, "text", None) or repr(value))
    if len(text) <= 60:
        return text

    return text[:57] + "…" + text[-1]


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """Loader with the tags of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for _tag, (_pattern, _first) in _CORE.items():
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first
    )


CORE_RESOLVERS = _Loader.yaml_implicit_resolvers
"""Patterns of plain words that are not text, by first letter, as PyYAML keeps them."""


def _compose(text: str) -> yaml.Node | None:
    """Return the node tree. Refuse deep nesting first: libyaml recurses on the C stack."""
    if len(text) > MAX_SAFE_TEXT:
        depth = 0
        for event in yaml.parse(text, Loader=_Loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                mark: Any = event.start_mark
                raise yaml.MarkedYAMLError(problem=_TOO_MUCH, problem_mark=mark)

    return yaml.compose(text, Loader=_Loader)


class _Walk:
    """Collector of values, positions and issues in one pass over the nodes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.origins: dict[Keys, str] = {}
        self.issues: list[Issue] = []
        self.nodes = 0

    def value(self, node: yaml.Node, keys: Keys) -> Any:
        self.nodes += 1
        self.origins[keys] = self._place(node)

        if self.nodes > MAX_NODES or len(keys) > MAX_DEPTH:
            return self._refuse(node, (), _TOO_MUCH)
        if isinstance(node, yaml.CollectionNode) and node.tag not in _PLAIN_TAGS:
            return self._refuse_tag(node, keys)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, keys)
        if isinstance(node, yaml.SequenceNode):
            return self._sequence(node, keys)

        return self._scalar(node, keys)

    def _mapping(self, node: yaml.MappingNode, keys: Keys) -> dict[str, Any]:
        values: dict[str, Any] = {}
        first: dict[str, yaml.Node] = {}
        for key_node, value_node in joined_calls(node):
            if self._exhausted():
                break

            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(key_node, keys, "a key must be a plain word")
                continue

            key = str(key_node.value)
            if key == "<<" and not key_node.style:
                self._refuse(key_node, keys, "<< is not part of YAML 1.2", "write the values here")
                continue

            if key in first:
                line = first[key].start_mark.line + 1
                self._refuse(key_node, (*keys, key), f"is given twice (first on line {line})")
                continue

            first[key] = key_node
            values[key] = self.value(value_node, (*keys, key))
            # Messages about unknown keys and missing values point at the key.
            self.origins[(*keys, key)] = self._place(key_node)

        return values

    def _sequence(self, node: yaml.SequenceNode, keys: Keys) -> list[Any]:
        values: list[Any] = []
        for index, item in enumerate(node.value):
            if self._exhausted():
                break
            values.append(self.value(item, (*keys, index)))

        return values

    def _scalar(self, node: yaml.Node, keys: Keys) -> Any:
        tag = node.tag.removeprefix("tag:yaml.org,2002:")
        text = node.value
        if tag in _CORE and not re.fullmatch(_CORE[tag][0], text):
            # The message omits the value: it may be a secret.
            return self._refuse(node, keys, f"is tagged as {tag}, but is not one")
        if tag == "null":
            return None
        if tag == "bool":
            return text.lower() == "true"
        if tag == "int":
            return _written_int(text)

        if tag == "float":
            number = WrittenFloat(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
            number.text = text
            return number

        if tag == "str":
            return text

        return self._refuse_tag(node, keys)

    def _exhausted(self) -> bool:
        return len(self.issues) > 100 or self.nodes > MAX_NODES

    def _refuse_tag(self, node: yaml.Node, keys: Keys) -> None:
        self._refuse(node, keys, f"the tag {node.tag!r} is not allowed; write a plain value")

    def _refuse(self, node: yaml.Node, keys: Keys, message: str, hint: str | None = None) -> None:
        self.issues.append(Issue(keys, message, hint, origin=self._place(node)))

    def _place(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _written_int(text: str) -> Any:
    try:
        number = WrittenInt(int(text, 0) if text[:2] in ("0x", "0o") else int(text))
        str(number)  # Python reads hexadecimal numbers of any length, but does not print them
    except ValueError:  # too many digits for Python
        return text

    number.text = text
    return number


def _syntax_issue(error: yaml.MarkedYAMLError, text: str, name: str) -> Issue:
    masker.add(secrets_in(text))
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    lines = text.splitlines()

    if line < len(lines) and "\t" in lines[line][: len(lines[line]) - len(lines[line].lstrip())]:
        message = "a tab in the indentation; YAML allows only spaces"
        hint = "replace the tab by two spaces"
    elif error.problem == _TOO_MUCH:
        message = _TOO_MUCH
        hint = None
    elif error.problem == "but found another document":
        message = "a second document starts here (---)"
        hint = "write one job per file"
    else:
        message = f"is not YAML: {error.problem or 'syntax error'}"
        hint = None

        if line < len(lines) and re.search(r"""\{.*\w\([^)]*["']""", lines[line]):
            hint = """in braces, quote the call as a whole: 'choice("a", "b")'"""

    return Issue((), message, hint, origin=f"{name}:{line + 1}:{column + 1}")


def _character_issue(text: str, name: str) -> Issue:
    match = re.search(_REFUSED, text)
    before = ""
    if match:
        before = text[: match.start()]

    line = before.count("\n") + 1
    column = len(before) - before.rfind("\n")
    problem = "contains a character that is not text"
    if match:
        problem = f"contains the control character U+{ord(match[0]):04X}"

    return Issue((), f"is not YAML: {problem}", origin=f"{name}:{line}:{column}")


def joined_calls(node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Yield the pairs of a mapping, with a split call such as `f(1, 2)` joined again.

    YAML ends a plain word in braces at each comma and takes `2)` for a key without a value.
    """
    pairs = list(node.value)
    while pairs:
        key, value = pairs.pop(0)
        if node.flow_style and _is_open(value):
            words = [word for word, empty in takewhile(_is_word_alone, pairs)]
            length = _length_of_call(value.value, [word.value for word in words])
            if length:
                value = _joined([value, *words[:length]])
                del pairs[:length]

        yield key, value


def _joined(words: Sequence[yaml.Node]) -> yaml.ScalarNode:
    """Join words with commas, and with the spaces as typed."""
    text = str(words[0].value)
    for before, word in pairwise(words):
        same_line = before.end_mark.line == word.start_mark.line
        if same_line:
            spaces = word.start_mark.column - before.end_mark.column - 1
        else:
            spaces = 1

        text += f",{' ' * spaces}{word.value}"

    return yaml.ScalarNode("tag:yaml.org,2002:str", text, words[0].start_mark, words[-1].end_mark)


def _length_of_call(start: str, words: Sequence[str]) -> int:
    """Return how many words close the brackets that `start` opens; 0 if they never close."""
    depth = start.count("(") - start.count(")")
    for count, word in enumerate(words, 1):
        depth += word.count("(") - word.count(")")
        if depth <= 0:
            return count if depth == 0 and word.endswith(")") else 0

    return 0


def _is_word_alone(pair: tuple[yaml.Node, yaml.Node]) -> bool:
    """Return whether a key has no value."""
    return all(map(_is_plain, pair)) and not pair[1].value


def _is_plain(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style in (None, "")


def _is_open(node: yaml.Node) -> bool:
    return _is_plain(node) and node.value.count("(") > node.value.count(")")


def mapping_of(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the mapping at a key, or {}."""
    value = values.get(key)
    return value if isinstance(value, dict) else {}


def quantity_of(value: Any, parse: Callable[[str], Any]) -> Any:
    """Return the amount in a text, or None."""
    try:
        if not isinstance(value, str):
            return None

        return parse(value)
    except ValueError:
        return None
