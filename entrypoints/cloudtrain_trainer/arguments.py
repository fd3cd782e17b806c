"""Decode the command line into `Options`, and end a rank whose options are refused.

Does not import torch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from cloudtrain_job import emit_event
from cloudtrain_trainer import rules
from cloudtrain_trainer.command_line import build_parser, is_first_rank
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.rules import DIGITS, USER_TASK, Refused, RefusedData
from cloudtrain_wire.events import Error


def parse(argv: list[str]) -> Options:
    """Decode the command line of a rank of $WORLD_SIZE.

    Raise `Refused` for invalid options, and for options that cannot work on that many ranks.
    """
    flags = vars(build_parser().parse_args(argv))
    if flags["data"] and not (flags["task"] or flags["model"]):
        raise Refused("--data needs what is trained on it: add --model with your model, or --task")

    flags["task"] = flags["task"] or (USER_TASK if flags["model"] else DIGITS)
    options = Options(**flags)
    rules.check(options, int(os.environ.get("WORLD_SIZE", "1")))

    return options


def option_names() -> list[str]:
    """Return every option of the command line, `--epochs` among them."""
    return [name for action in build_parser()._actions for name in action.option_strings]


def refuse(reason: Refused) -> NoReturn:
    """End this rank with exit code 2 and an error event. All ranks report it to torchrun.

    Only rank 0 prints the reason, since all ranks refuse the same options. A problem in a rank's
    own data is printed by that rank.
    """
    prints = is_first_rank() or isinstance(reason, RefusedData)
    text = str(reason)
    if text.startswith("Caught "):  # torch adds the traceback of a loader process
        text = text.rpartition(f"{RefusedData.__qualname__}: ")[2].strip()

    exit_with_error(2, "Refused", f"refused: {text}", text, prints=prints)


def exit_with_error(
    code: int, exception: str, message: str, printed: str = "", *, prints: bool = True
) -> NoReturn:
    """End this rank with an exit code; report the error to log, launcher and torchrun.

    `printed`: the text for the log, if it differs from `message`. `prints`: whether this rank
    prints it. Errors of the other ranks are marked as consequences, so that the launcher names one
    that prints.
    """
    printed = printed or message
    sys.stdout.flush()
    if prints:
        os.write(2, f"train.py: error: {printed}\n".encode())

    if os.environ.get("CLOUDTRAIN_RESULT_FILE"):
        attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        emit_event(
            Error(attempt=attempt, exception=exception, message=message, consequence=not prints)
        )

    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        extra = {"py_callstack": printed, "timestamp": str(int(time.time()))}
        Path(path).write_text(json.dumps({"message": {"message": printed, "extraInfo": extra}}))

    sys.stderr.flush()
    os._exit(code)
