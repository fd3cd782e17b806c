"""A YAML file as plain values, each with its line and column.

YAML is read by the rules of its version 1.2 (core schema): `yes`, `off` and `1:30` are strings,
`1e-3` is a number, `007` is seven. A number remembers how it was written, so that an argument
arrives as it was typed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from cloudtrain.errors import SpecError
from cloudtrain.issues import Issue, Keys
from cloudtrain.spec.calls_in_braces import joined_calls

MAX_NODES = 100_000
MAX_DEPTH = 50
MAX_SAFE_TEXT = 5_000
"""A text this short cannot nest so deeply that it does harm."""


_TOO_MUCH = "holds more or deeper values than any job needs (or an endless alias)"
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_REFUSED = r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
"""Characters that YAML does not allow to be written as they are."""


class WrittenInt(int):
    """A whole number that remembers its text, such as `007`."""

    text: str


class WrittenFloat(float):
    """A number that remembers its text, such as `1.10`."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """Values and origins. `origins` has the position of every value and key: `job.yaml:7:3`, `--set
    a.b=c`.
    """

    values: dict[str, Any]
    origins: dict[Keys, str] = field(default_factory=dict)
    name: str = "job.yaml"
    text: str = ""
    """What was read, before any override."""
    overrides: tuple[str, ...] = ()
    """The `--set` texts laid over it."""
    mistakes: tuple[Issue, ...] = ()
    """What is wrong with these texts themselves; reading the spec raises it with all other
    mistakes.
    """

    def origin(self, keys: Keys) -> str:
        """The position of the value at `keys`, or of the section around it; the file alone where
        neither is there.
        """
        if not keys:
            return self.origins.get((), self.name)
        while keys and keys not in self.origins:
            keys = keys[:-1]
        return self.origins[keys] if keys else self.name


def parse_document(text: str, *, name: str) -> Document:
    """The document in `text`; SpecError lists everything that is no plain YAML mapping."""
    try:
        root = _compose(text)
    except yaml.MarkedYAMLError as error:
        raise SpecError([_syntax_issue(error, text, name)]) from None
    except yaml.YAMLError:
        raise SpecError([_character_issue(text, name)]) from None
    if root is None:
        hint = "cloudtrain init writes a commented starter"
        raise SpecError([Issue((), "is empty", hint, origin=f"{name}:1:1")])
    walk = _Walk(name)
    values = walk.value(root, ())
    if not walk.issues and not isinstance(values, dict):
        where = f"{name}:{root.start_mark.line + 1}:{root.start_mark.column + 1}"
        message = f"expected a mapping (key: value), got {kind_of(values)}"
        walk.issues.append(Issue((), message, origin=where))
    if walk.issues:
        raise SpecError(walk.issues)
    return Document(values=values, origins=walk.origins, name=name, text=text)


def parse_scalar(text: str) -> Any:
    """The value of `--set key=TEXT` or of an environment variable: YAML on one line (`4`, `[a, b]`,
    `6 h`).
    """
    try:
        root = _compose(text)
    except yaml.YAMLError:
        return text
    if root is None or (
        isinstance(root, yaml.ScalarNode) and not root.style and root.value != text.strip()
    ):
        return (
            text.strip()
        )  # what YAML would drop, such as the comment in `#fff` or `a #1`, was typed to be kept
    walk = _Walk("")
    value = walk.value(root, ())
    return text if walk.issues else value


def kind_of(value: Any) -> str:
    """A value as an error message names it: `'two'`, `a list`, `a mapping`, `nothing`."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    text = getattr(value, "text", None) or repr(value)
    return text if len(text) <= 60 else text[:57] + "…" + text[-1]


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """Composes nodes whose tags follow YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


_CORE = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
"""What a plain word must look like to be more than text, and the letters it may begin with."""

for _tag, (_pattern, _first) in _CORE.items():
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first
    )


def _compose(text: str) -> yaml.Node | None:
    """The node tree. libyaml's composer recurses on the C stack: what nests too deeply must not
    reach it.
    """
    if len(text) > MAX_SAFE_TEXT:
        depth = 0
        for event in yaml.parse(text, Loader=_Loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            if depth > MAX_DEPTH:
                mark: Any = event.start_mark
                raise yaml.MarkedYAMLError(problem=_TOO_MUCH, problem_mark=mark)
    return yaml.compose(text, Loader=_Loader)


class _Walk:
    """One pass over the nodes that collects values, positions and issues."""

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
                self._refuse(
                    key_node, keys, "<< merges nothing in YAML 1.2", "write its values out here"
                )
                continue
            if key in first:
                line = first[key].start_mark.line + 1
                self._refuse(key_node, (*keys, key), f"is given twice (first on line {line})")
                continue
            first[key] = key_node
            values[key] = self.value(value_node, (*keys, key))
            # A key's own position is where a reader looks for "unknown key" and for a missing value
            # alike.
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
            return self._refuse(
                node, keys, f"is tagged as {tag}, which it is not"
            )  # it may be a secret: unsaid
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
        self._refuse(
            node, keys, f"a tag such as {node.tag!r} is not allowed here; write a plain value"
        )

    def _refuse(self, node: yaml.Node, keys: Keys, message: str, hint: str | None = None) -> None:
        self.issues.append(Issue(keys, message, hint, origin=self._place(node)))

    def _place(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _written_int(text: str) -> Any:
    try:
        number = WrittenInt(int(text, 0) if text[:2] in ("0x", "0o") else int(text))
        str(
            number
        )  # of hexadecimal digits Python reads any count, and writes no more than of others
    except ValueError:  # more digits than Python reads; no field takes such a number
        return text
    number.text = text
    return number


def _syntax_issue(error: yaml.MarkedYAMLError, text: str, name: str) -> Issue:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    lines = text.splitlines()
    if line < len(lines) and "\t" in lines[line][: len(lines[line]) - len(lines[line].lstrip())]:
        message = "a tab in the indentation; YAML takes spaces only"
        hint = "replace the tab by two spaces"
    elif error.problem == _TOO_MUCH:
        message = _TOO_MUCH
        hint = None
    elif error.problem == "but found another document":
        message = "a second document begins here (---)"
        hint = "one job file holds one job"
    else:
        message = f"is not YAML: {error.problem or 'syntax error'}"
        hint = None
        if line < len(lines) and re.search(r"""\{.*\w\([^)]*["']""", lines[line]):
            hint = """in braces, quote the call as a whole: 'choice("a", "b")'"""
    return Issue((), message, hint, origin=f"{name}:{line + 1}:{column + 1}")


def _character_issue(text: str, name: str) -> Issue:
    found = re.search(_REFUSED, text)
    before = text[: found.start()] if found else ""
    line = before.count("\n") + 1
    column = len(before) - before.rfind("\n")
    what = (
        f"holds the control character U+{ord(found[0]):04X}"
        if found
        else "holds a character that is not text"
    )
    return Issue((), f"is not YAML: {what}", origin=f"{name}:{line}:{column}")
