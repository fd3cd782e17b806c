"""`{lr: uniform(0.1, 1), n: 3}`: what YAML takes for several words in braces is one value, as it
was meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile

import yaml


def joined_calls(node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """The pairs of a mapping; in one of the form {a: f(1, 2), b: 3}, `f(1, 2)` is one value.

    YAML ends a plain word in braces at each comma, and takes `2)` for a key without a value.
    """
    rest = list(node.value)
    while rest:
        key, value = rest.pop(0)
        if node.flow_style and _is_open(value):
            words = [word for word, empty in takewhile(_is_word_alone, rest)]
            length = _length_of_call(value.value, [word.value for word in words])
            if length:
                value = _joined([value, *words[:length]])
                del rest[:length]
        yield key, value


def _joined(words: Sequence[yaml.Node]) -> yaml.ScalarNode:
    """Words between which there were commas as one, with the spaces that were typed after each
    comma.
    """
    text = str(words[0].value)
    for before, word in pairwise(words):
        same_line = before.end_mark.line == word.start_mark.line
        spaces = word.start_mark.column - before.end_mark.column - 1 if same_line else 1
        text += f",{' ' * spaces}{word.value}"
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, words[0].start_mark, words[-1].end_mark)


def _length_of_call(start: str, words: Sequence[str]) -> int:
    """How many words belong to what `start` opens, to its closing bracket; 0 where there is none."""
    depth = start.count("(") - start.count(")")
    for count, word in enumerate(words, 1):
        depth += word.count("(") - word.count(")")
        if depth <= 0:
            return count if depth == 0 and word.endswith(")") else 0
    return 0


def _is_word_alone(pair: tuple[yaml.Node, yaml.Node]) -> bool:
    """Whether a key of a mapping has nothing behind it."""
    return all(map(_is_plain, pair)) and not pair[1].value


def _is_plain(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style in (None, "")


def _is_open(node: yaml.Node) -> bool:
    return _is_plain(node) and node.value.count("(") > node.value.count(")")
