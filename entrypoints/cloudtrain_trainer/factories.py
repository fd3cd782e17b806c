"""Find and call the functions that a user names as `package.module:factory`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from cloudtrain_trainer.rules import Refused


class Factory:
    """A user's function or class of one option: `--data net:data`.

    Raise `Refused` if it cannot be found.
    """

    def __init__(self, option: str, spec: str) -> None:
        self.option = option
        self.spec = spec
        self._function = _find(f"{option} {spec}", spec)

    def __str__(self) -> str:
        """Return its name in messages: `net.py:12: --data net:data`."""
        return f"{place(self._function)}: {self.option} {self.spec}"

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        """Call the function with the values that it has parameters for, by name.

        Raise `Refused` if it needs others. An error in the function's code is not caught: its
        traceback explains more.
        """
        return self.bound(arguments)()

    def bound(self, arguments: Mapping[str, Any]) -> partial[Any]:
        """Return the function with the values that it has parameters for.

        Raise `Refused` if it needs others.
        """
        parameters = _parameters(self._function)
        missing = [name for name in parameters if _lacks(parameters[name], arguments)]
        if missing:
            raise Refused(
                f"{self} needs {' and '.join(map(repr, missing))}, and the trainer only passes"
                f" {' and '.join(arguments)}: give the parameter a default, or name a function"
                " without it"
            )

        taken = {name: value for name, value in arguments.items() if name in parameters}
        return partial(self._function, **taken)


def place(value: Any) -> str:
    """Return where a function, class or an object's class is defined: `net.py:12`.

    Without a file it is the module.
    """
    while isinstance(value, partial):
        value = value.func

    if callable(value):
        value = inspect.unwrap(value)

    function = getattr(value, "__func__", value)
    code = getattr(function, "__code__", None)

    try:
        if code is not None:
            return f"{_short(code.co_filename)}:{code.co_firstlineno}"
        kind = value if inspect.isclass(value) else type(value)
        file = inspect.getsourcefile(kind) or kind.__module__
        _, line = inspect.getsourcelines(kind)

        return f"{_short(file)}:{line}"
    except (TypeError, OSError):  # written in C, or without a file
        return str(getattr(value, "__module__", None) or type(value).__module__)


def describe(value: Any) -> str:
    """Describe what a user's code returned: `a dict of Tensor, int`, `nothing`."""
    kind = type(value).__name__
    if value is None:
        return "nothing"

    article = "an" if kind[0] in "AEIOUaeiou" else "a"
    if not isinstance(value, (dict, list, tuple)):
        return f"{article} {kind}"

    parts = list(value.values()) if isinstance(value, dict) else list(value)
    names = [type(part).__name__ for part in parts[:5]]
    if len(parts) > 5:
        names.append("...")

    return f"{article} {kind} of {', '.join(names) or 'nothing'}"


def _lacks(parameter: inspect.Parameter, arguments: Mapping[str, Any]) -> bool:
    """Return whether a call with these named arguments leaves the parameter without a value."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return False
    if parameter.default is not parameter.empty:
        return False

    return parameter.name not in arguments or parameter.kind is parameter.POSITIONAL_ONLY


def _short(path: str) -> str:
    """Make a path relative to the current folder, where the user's code usually is."""
    folder = Path.cwd()
    if not Path(path).is_relative_to(folder):
        return path

    return str(Path(path).relative_to(folder))


def _find(named: str, spec: str) -> Callable[..., Any]:
    """Import the function. Modules in the current folder come first."""
    module_name, colon, name = spec.partition(":")
    if not colon or not name or not all(part.isidentifier() for part in module_name.split(".")):
        raise Refused(f"{named}: expected package.module:factory")

    folder = str(Path.cwd())
    if sys.path[0] != folder:
        sys.path.insert(0, folder)

    try:
        module = import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
            raise  # the module exists, but one that it imports does not

        raise Refused(
            f"{named}: there is no module {missing.name} in {folder} or on Python's path"
        ) from None
    except SyntaxError as error:
        at = f"{_short(error.filename or module_name)}:{error.lineno}"
        raise Refused(f"{at}: {named}: {error.msg}: {(error.text or '').strip()}") from None

    factory = getattr(module, name, None)

    if not callable(factory):
        problem = "nothing" if factory is None else "no function"
        raise Refused(
            f"{named}: {_short(module.__file__ or module_name)} has {problem} named {name}"
        )

    return factory  # type: ignore[no-any-return]


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some callables written in C have none
        return {}
