"""The functions of one's own that the shared trainer is to call: looked for in the source before a
machine is paid for.

Nothing is imported: a module's syntax tree tells which names it can have.
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
"""The trainer's options that take `package.module:factory`."""


@dataclass(frozen=True, slots=True)
class Factory:
    """One `package.module:factory` of the arguments."""

    option: str
    module: str
    name: str
    path: Keys
    """The field of the spec that holds it."""


def factories_of(plan: Plan) -> list[Factory]:
    """The functions that the arguments name; none for a program of the user's own."""
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
    """Errors about functions that their module in the source does not have; none where the source
    folder is gone.

    A module of which the source has nothing is installed where the job runs, or else
    `package_issues` warns of it.
    """
    root = Path(plan.context.source.root)
    if not root.is_dir():
        return []
    found = ((each, _mistake(each, root)) for each in factories_of(plan))
    return [
        plan.located(Issue(each.path, f"{each.option}: {text}")) for each, text in found if text
    ]


def _mistake(factory: Factory, root: Path) -> str:
    """What is wrong with it; empty where that cannot be told."""
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
