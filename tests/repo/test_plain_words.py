"""Code and pages stay in plain English: few hard phrases, names that are nouns, one assignment a line.

Each limit is a rate that may only fall. A hit is a hint: some phrases are right.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.repo.tools import ROOT

HARD_PHRASES = {
    "cloudtrain": 30,
    "entrypoints": 30,
    "docs": 30,
    "tests": 34,
}
"""Maximum number of hard phrases per 10,000 words of docstrings, comments, messages and pages."""

PRONOUN_NAMES = {"cloudtrain": 6, "docs": 6, "entrypoints": 6, "tests": 6}
"""Maximum number of pronouns per 1,000 assigned names."""

MAX_TUPLE_ASSIGNMENTS = 15
"""Assignments such as `a, b = x, y` per 1,000 functions."""

HARD = re.compile(
    r"""(?mx)
      ^\s*Of\ (?:an?|the|all|each|its|what|which|one|those|these|this|that|some|two)\b
    | ^\s*(?:What|So\ many|So\ much|Which|Whether|Where)\ [^?\n]*[.:]?\s*$
    | \bwhere\ (?:there\ (?:is|are)|one\ (?:is|has)|none|no)\b
    | \b(?:by|of|from|to|with|in|on|at|for)\ which\b
    | \b(?:go|goes|going|gone|went)\ on\b
    | \b(?:is|are|was|were|has|have)\ no\ (?!longer|more\ than|such)\w+
    | \b(?:is|are|was|were|be|been)\ (?:told|said|asked)\b | \bsays?\ so\b
    | \bso\ (?:many|much|long|often|far)\b(?!\ (?:as\ to|that))
    | \bthe\ one\ (?:of|that|which)\b | \bthose\ (?:of|that|which)\b | \bthat\ of\b
    | \b(?:of|by|for|from|with|in|to|and)\ what\ (?:it|is|was|has|a|the|they|one|does|can|must)\b
    | \bas\ (?:it|they)\ (?:is|are|was|were|stands?)\b
    | \bof\ (?:one's|its|their|our|your)\ own\b
    | \b(?:nothing|nobody|none)\ (?:of|is|was|that|but|else|can|has|does)\b
    | \bany\ more\b
    | \b(?:that|which|what)\ (?:is|are|was|were)\ there\b
    | \b(?:all|each|every)\ (?:that|which)\b
    | \bstands?\ (?:in|for|at|beside|by|before|behind)\b
    """
)
PRONOUN = re.compile(
    r"_?(?:found|each|known|told|said|given|kept|left|there|here|such|same|others?|rest|own|ours"
    r"|theirs|what|which|whose|asked|seen|wanted|gone|done|so_far|now|then|again|about|beside"
    r"|within|near|among)"
)
MIN_WORDS = 3
"""A shorter string literal is a key or a word, not prose."""


@cache
def sources(folder: str) -> dict[Path, tuple[str, ast.Module]]:
    """Return text and syntax tree of each Python file below a folder."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    texts = {path: path.read_text("utf-8") for path in paths if "data" not in path.parts}
    return {path: (text, ast.parse(text)) for path, text in texts.items()}


def prose(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the places and texts of docstrings, comments, longer strings and Markdown pages."""
    for path, (code, tree) in sources(folder).items():
        name = path.relative_to(ROOT)
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.COMMENT:
                yield f"{name}:{token.start[0]}", token.string.lstrip("#! ")
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and len(text.split()) >= MIN_WORDS:
                yield f"{name}:{getattr(node, 'lineno', 0)}", text
    for path in sorted((ROOT / folder).rglob("*.md")):
        without_code = re.sub(r"(?ms)^(```|~~~).*?^\1", "", path.read_text("utf-8"))
        yield str(path.relative_to(ROOT)), re.sub(r"`[^`]*`|\]\([^)]*\)", " X ", without_code)


def assigned_names(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the place and the name of each variable, parameter, function and class."""
    for path, (_, tree) in sources(folder).items():
        for node in ast.walk(tree):
            name = ""
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = node.name
            if name:
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", name


@pytest.mark.parametrize("folder", HARD_PHRASES)
def test_hard_phrases_are_rare(folder: str) -> None:
    words = 0
    hits = []
    for place, text in prose(folder):
        words += len(text.split())
        hits += [f"{place}: {match[0].strip()[:60]}" for match in HARD.finditer(text)]
    assert 10_000 * len(hits) / words <= HARD_PHRASES[folder], "\n".join(hits[-40:])


@pytest.mark.parametrize("folder", PRONOUN_NAMES)
def test_names_are_nouns(folder: str) -> None:
    names = list(assigned_names(folder))
    hits = [f"{place}: {name}" for place, name in names if PRONOUN.fullmatch(name)]
    assert 1000 * len(hits) / len(names) <= PRONOUN_NAMES[folder], "\n".join(hits[-40:])


@pytest.mark.parametrize("folder", ["cloudtrain", "entrypoints", "tests"])
def test_a_line_assigns_one_thing(folder: str) -> None:
    functions = 0
    hits = []
    for path, (_, tree) in sources(folder).items():
        for node in ast.walk(tree):
            functions += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
                continue
            if isinstance(node.targets[0], ast.Tuple):
                hits.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert 1000 * len(hits) / functions <= MAX_TUPLE_ASSIGNMENTS, "\n".join(hits)
