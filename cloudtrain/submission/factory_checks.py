"""Checks of the user's functions for the shared trainer, before a machine is paid for.

Nothing is imported: a module's syntax tree has the names that it can define.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cloudtrain.issues import Issue, Keys, did_you_mean
from cloudtrain.planning.plan import Plan
from cloudtrain.source.imports import module_files, names_in
from cloudtrain.submission.trainer_arguments import words_of

OPTIONS = ("--task", "--model", "--data", "--optimizer")
"""Options of the trainer that take `package.module:factory`."""


@dataclass(frozen=True, slots=True)
class Factory:
    """`package.module:factory` in the arguments."""

    option: str
    module: str
    name: str
    path: Keys
    """Field of the spec that contains it."""


def factories_of(plan: Plan) -> list[Factory]:
    """Return the functions in the arguments; none for the user's own program."""
    if plan.spec.entrypoint is not None:
        return []
    return list(_factories(words_of(plan.spec.args)))


def _factories(words: Sequence[tuple[str, Keys]]) -> Iterator[Factory]:
    for (word, path), (following, _) in pairwise([*words, ("", ())]):
        option, equals, value = word.partition("=")
        match = re.fullmatch(r"([A-Za-z_][\w.]*):(\w+)", value if equals else following)
        if option in OPTIONS and match:
            yield Factory(option, match[1], match[2], path)


def factory_issues(plan: Plan) -> list[Issue]:
    """Return errors about functions that are missing in their module of the source.

    A module that is not in the source may be installed where the job runs; `package_issues` warns
    otherwise. Return nothing if the source folder is gone.
    """
    root = Path(plan.context.source.root)
    if not root.is_dir():
        return []
    mistakes = ((factory, _mistake(factory, root)) for factory in factories_of(plan))
    return [
        plan.located(Issue(factory.path, f"{factory.option}: {text}"))
        for factory, text in mistakes
        if text
    ]


def _mistake(factory: Factory, root: Path) -> str:
    """Return the problem of a function, or "" if none or unknown."""
    files = module_files(factory.module, root)
    if not files:
        return ""
    path = root.joinpath(*factory.module.split("."))
    last = files[-1].relative_to(root)
    if files[-1] not in (path.with_suffix(".py"), path / "__init__.py"):
        return f"{last.parent} has no module {factory.module}"
    names = names_in(files[-1])
    if names is None or factory.name in names:
        return ""
    return f"{last} has nothing named {factory.name}{did_you_mean(factory.name, sorted(names))}"
