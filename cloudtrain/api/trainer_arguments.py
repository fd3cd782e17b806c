"""Checks of the shared trainer's arguments and functions, without torch and imports."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain.errors import Issue, Keys, did_you_mean
from cloudtrain.planning.plan import Plan
from cloudtrain.source.programs import module_files, names_in
from cloudtrain.spec.fields import Arguments, read_arguments

Word = tuple[str, Keys]
"""Word of the command line and its field in the spec."""

OPTIONS = ("--task", "--model", "--data", "--optimizer")
"""Options of the trainer that take `package.module:factory`."""


def trainer_issues(plan: Plan) -> list[Issue]:
    """Return errors about arguments that the trainer would refuse with these ranks.

    A user's own program has none.
    """
    if plan.spec.entrypoint is not None:
        return []

    ranks = {
        "WORLD_SIZE": str(plan.spec.resources.nodes * plan.processes),
        "LOCAL_WORLD_SIZE": str(plan.processes),
        "RANK": "1",  # which prints nothing
    }
    from cloudtrain_trainer import arguments  # few jobs run the trainer

    with _environment(ranks):
        issues = _issues(words_of(plan.spec.args), arguments)

    return [plan.located(issue) for issue in issues]


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables for the trainer's checks, and restore the environment afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)

    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def words_of(args: Arguments) -> list[Word]:
    """Return the words of the command line, each with its field."""
    if not isinstance(args.values, Mapping):
        return [(word, ("args", at)) for at, word in enumerate(args.argv)]

    words: list[Word] = []
    for key, value in args.values.items():
        words += [(word, ("args", key)) for word in read_arguments({key: value}).argv]

    return words


def _issues(words: list[Word], trainer: Any) -> list[Issue]:
    """Return the errors of single options, or else of their combination."""
    option_names = trainer.option_names()
    issues = []
    for word, path in list(words):
        name = word.partition("=")[0]
        if name.startswith("--") and name not in option_names:
            suggestion = did_you_mean(
                name.removeprefix("--"),
                [option_name.removeprefix("--") for option_name in option_names],
            )
            issues.append(Issue(path, f"the shared trainer has no option {name}{suggestion}"))
            words = _without(words, name)

    while True:
        try:
            trainer.parse([word for word, _ in words])
        except trainer.Refused as reason:
            issue, option = _refusal(str(reason), words)
            if option or not issues:
                issues.append(issue)

            if not option:
                break

            words = _without(words, option)
        except SystemExit:  # --help
            break
        else:
            break

    return issues


def _refusal(reason: str, words: Sequence[Word]) -> tuple[Issue, str]:
    """Return the trainer's message at its option, and that option; "" if it is about several."""
    paths: dict[str, Keys] = {}
    for word, path in words:
        if word.startswith("--"):
            paths.setdefault(word.partition("=")[0], path)

    option_match = re.match(r"argument (--[\w-]+)", reason)
    option = ""
    if option_match and option_match[1] in paths:
        option = option_match[1]

    mentioned = [name for name in re.findall(r"--[\w-]+", reason) if name in paths]
    named = option
    if mentioned and not option:
        named = mentioned[0]

    choice = re.search(r"invalid choice: '(.*?)' \(choose from (.*?)\)", reason)
    suggestion = ""
    if choice:
        suggestion = did_you_mean(choice[1], re.findall(r"[\w-]+", choice[2]))

    message, more, after = reason.partition(" (train.py --help")

    return Issue(
        paths.get(named, ("args",)), f"the shared trainer says: {message}{suggestion}{more}{after}"
    ), option


def _without(words: Sequence[Word], option: str) -> list[Word]:
    """Return the command line without an option and its values."""
    remaining = []
    dropping = False
    for word, path in words:
        if word.startswith("--"):
            dropping = word.partition("=")[0] == option
        if not dropping:
            remaining.append((word, path))

    return remaining


class Factory(NamedTuple):
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

    issues = []
    for factory in factories_of(plan):
        mistake = _mistake(factory, root)
        if mistake:
            issues.append(plan.located(Issue(factory.path, f"{factory.option}: {mistake}")))

    return issues


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
