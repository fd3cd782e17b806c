"""Message to the submitter when a run or a sweep has ended: by a command, or to a webhook.

A submit leaves a mark in the data folder. The first command here that sees the end starts a process
that sends the message and then removes the mark, so that it is sent at least once, and no command
waits for a receiver. The mark names the receivers that took the message: another one that is gone
does not make it come to them again. It also has the answer of each receiver that did not take it.
A sweep's driver does the same for the folder of its sweep, and none for its trials.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloudtrain.errors import StorageError
from cloudtrain.runs.files import make_private_folder, private_opener
from cloudtrain.runs.fold import fold
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.state import RunState, explain
from cloudtrain.runs.store import NOTIFY_MARKS
from cloudtrain.settings import Settings, load_settings
from cloudtrain_wire.bounded_files import read_regular_text
from cloudtrain_wire.file_locks import acquire
from cloudtrain_wire.secret_values import masker, secrets_in

PAUSES = (0, 5, 30)
"""Seconds before each attempt; a later command that looks at the run tries again."""
MAX_AGE_SECONDS = 7 * 86400
"""Age of a mark at which no receiver is asked any longer."""
RECEIVERS = ("command", "webhook", "slack")
TIMEOUT_SECONDS = 10
MAX_REASON = 300


def expect(run: RunFolder, settings: Settings) -> None:
    """Note that receivers want the end of a run, if the user's settings name any."""
    if any(settings.get(f"notify.{key}") for key in RECEIVERS):
        mark = _mark(run)
        with suppress(OSError):
            make_private_folder(mark.parent)
            os.close(private_opener(str(mark), os.O_WRONLY | os.O_CREAT))


def refusals(data_dir: Path, name: str) -> list[str]:
    """Return `slack: HTTP Error 404: Not Found` of each receiver that did not take a message yet.

    `name`: id of the run or sweep.
    """
    with suppress(OSError):
        lines = read_regular_text(data_dir / NOTIFY_MARKS / name).splitlines()
        return [line for line in lines if line not in RECEIVERS]

    return []


def send_in_background(run: RunFolder, module: str = __name__) -> None:
    """Start the process that tells the end of a run, if that is still to be done.

    `module`: the program that does it; another one for the folder of a sweep.
    """
    if not _mark(run).exists():
        return

    from cloudtrain.providers.local.processes import reap_in_background  # rarely needed

    with suppress(OSError):
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(run.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        reap_in_background(process)


def send(run: RunFolder, document: Mapping[str, Any] | None = None) -> bool:
    """Tell the end of a run, in several attempts. Return whether all receivers took it.

    `document`: the message; None: `message_of` this run.
    """
    mark = _mark(run)
    lock = acquire(mark, wait=False) if mark.exists() else None
    if lock is None:  # nobody wants it, or another process does it
        return False

    try:
        settings = load_settings(run.path)
        masker.add(secrets_in(dict(os.environ)))
        with suppress(StorageError):
            _ = RunRecord(run).spec  # its secrets are masked from now on

        if document is None:
            document = message_of(fold(run.run_id, run.each_event()))

        for pause in PAUSES:
            time.sleep(pause)
            if _deliver(mark, settings, document):
                return True
    finally:
        lock.release()

    return False


def message_of(state: RunState) -> dict[str, Any]:
    """Return name, verdict, cost and link of an ended run, and a sentence with them in `text`."""
    reason = masker.mask_text(explain(state).partition("\n")[0])[:MAX_REASON]
    usd = state.billing.usd if state.billing else None
    link = str((state.ref or {}).get("url") or "")
    document = message(state.run_id, state.name, state.state, reason=reason, usd=usd, link=link)
    return {"run": state.run_id, **document}


def message(
    name_id: str, name: str, state: str, *, reason: str, usd: float | None, link: str = ""
) -> dict[str, Any]:
    """Return the parts of a message without the kind of its id, and the sentence in `text`."""
    parts = [f"{name} ({name_id}) {state}"]
    if reason:
        parts[0] += f": {reason}"
    if usd is not None:
        parts.append(f"{usd:.2f} USD at list price")
    if link:
        parts.append(link)

    return {
        "name": name,
        "state": state,
        "reason": reason,
        "usd": usd,
        "link": link,
        "text": "\n".join(parts),
    }


def _deliver(mark: Path, settings: Settings, document: Mapping[str, Any]) -> bool:
    """Give a message to every receiver that did not take it yet. Return whether all took it."""
    from http.client import HTTPException  # slow to import

    noted_at = mark.stat().st_mtime
    taken = [line for line in read_regular_text(mark).splitlines() if line in RECEIVERS]
    missing = [key for key in RECEIVERS if settings.get(f"notify.{key}") and key not in taken]
    if time.time() - noted_at > MAX_AGE_SECONDS:
        missing = []

    refused = []
    for key in missing:
        try:
            _give(key, str(settings[f"notify.{key}"]), document)
        except (OSError, ValueError, HTTPException, subprocess.SubprocessError) as error:
            refused.append(f"{key}: {_why(error)}")
        else:
            taken.append(key)

        mark.write_text("".join(f"{line}\n" for line in (*taken, *refused)))
        os.utime(mark, (noted_at, noted_at))

    if not refused:
        mark.unlink(missing_ok=True)

    return not refused


def _why(error: Exception) -> str:
    """Return why a receiver did not take a message, in one line."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"it exited with {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer in {TIMEOUT_SECONDS} s"

    return masker.mask_text(" ".join(str(error).split()))[:MAX_REASON]


def _give(key: str, value: str, document: Mapping[str, Any]) -> None:
    """Give a message to one receiver. Raise one of the errors that `_deliver` knows for a refusal."""
    body = json.dumps(document).encode()
    if key == "command":
        words = [*shlex.split(value), document["text"]]
        subprocess.run(words, input=body, timeout=TIMEOUT_SECONDS, check=True)
    elif key == "webhook":
        _post(value, body)
    else:
        text = document["text"].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        _post(value, json.dumps({"text": text}).encode())


def _post(reference: str, body: bytes) -> None:
    import urllib.request  # slow to import

    address = os.environ.get(reference.removeprefix("env:"), "")
    if not address.startswith(("https://", "http://")):
        raise ValueError(f"{reference} is not set to an address")

    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, body, headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS):
        pass


def _mark(run: RunFolder) -> Path:
    return run.path.parents[1] / NOTIFY_MARKS / run.run_id


if __name__ == "__main__":
    send(RunFolder(Path(sys.argv[1])))
