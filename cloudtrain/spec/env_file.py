"""Files of variables, such as `.env`: one NAME=VALUE per line."""

from __future__ import annotations

import json
import re
from pathlib import Path

from cloudtrain.errors import UsageError
from cloudtrain.spec.sources import FlagText
from cloudtrain_wire.bounded_files import read_regular_text

_LINE = re.compile(
    r"""(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*
    (?:'(?P<literal>[^']*)'|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>(?![\s'"])(?:(?<!\s)\#|[^#])*?)?)
    \s*(?:(?<=\s)\#.*)?""",
    re.VERBOSE | re.ASCII,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def variables_of(path: Path) -> list[FlagText]:
    r"""Return an override of `env` for each variable of a file.

    Quotes around a value are removed, and `\n` between double quotes is a new line. `$NAME` stays as
    it is. Raise UsageError if the file cannot be read, and for a line without a variable.
    """
    try:
        lines = read_regular_text(path).split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"--env-file {path} cannot be read: {why}") from None

    overrides = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue

        match = _LINE.fullmatch(line)
        if match is None:
            hint = "NAME=VALUE, with quotes around a value that has quotes or ' #' in it"
            raise UsageError(f"{path}:{number}: is not a variable", hint=hint)

        value = match["literal"] or match["plain"] or ""
        if match["quoted"]:
            value = re.sub(r"\\(.)", lambda at: _ESCAPES.get(at[1], at[1]), match["quoted"])

        text = f"env.{match['name']}={json.dumps(value, ensure_ascii=False)}"
        overrides.append(FlagText(text, f"--env-file {path}:{number}"))

    return overrides
