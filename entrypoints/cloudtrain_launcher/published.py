"""Files from the client for a running job. Standard library only.

They are in a folder of this machine, on a mount, or below an `s3://` address, read with the job's
role and the image's boto3.
"""

from __future__ import annotations

import importlib
import os
import threading
from pathlib import Path

from cloudtrain_launcher.stored_secrets.aws import region_of

READ_TIMEOUT_SECONDS = 10.0
"""Time limit of a mount's answer, during which the job's output waits."""

SCHEME = "s3://"


def read_published(place: str, name: str) -> str | None:
    """Return the text of a file at `NodeContext.published`; None if it does not exist yet.

    Raise RuntimeError or OSError if that cannot be determined.
    """
    if not place:
        raise RuntimeError(
            "this platform has no place at which a job reads what its client publishes"
        )
    data = _read_object(place, name) if place.startswith(SCHEME) else _read_file(Path(place, name))
    try:
        return data if data is None else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RuntimeError(f"{name} is not text: {error}") from None


def _read_file(path: Path) -> bytes | None:
    """Read a file in a separate thread, since a mount may hang."""
    answers: list[bytes | OSError | None] = []

    def read() -> None:
        try:
            os.listdir(path.parent)  # noqa: PTH208  (a mount may cache for long that a file was not there)
            answers.append(path.read_bytes())
        except FileNotFoundError:
            answers.append(None)
        except OSError as error:
            answers.append(error)

    thread = threading.Thread(target=read, daemon=True, name="published file")
    thread.start()
    thread.join(READ_TIMEOUT_SECONDS)
    if not answers:
        raise RuntimeError(f"{path} could not be read within {READ_TIMEOUT_SECONDS:g} s")
    if isinstance(answers[0], OSError):
        raise answers[0]
    return answers[0]


def _read_object(place: str, name: str) -> bytes | None:
    bucket, _, prefix = place[len(SCHEME) :].partition("/")
    key = f"{prefix.rstrip('/')}/{name}"
    try:
        boto3, config = (importlib.import_module(module) for module in ("boto3", "botocore.config"))
        limits = config.Config(
            connect_timeout=5, read_timeout=5, retries={"mode": "standard", "total_max_attempts": 2}
        )
        client = boto3.client("s3", region_name=region_of("", os.environ), config=limits)
    except Exception as error:  # noqa: BLE001  (a broken installation fails in many ways)
        raise RuntimeError(
            f"{place}/{name} is read with boto3, which does not work here: {error}"
        ) from None
    try:
        data: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    except Exception as error:  # noqa: BLE001  (also of what lies below boto3)
        code = getattr(error, "response", {}).get("Error", {}).get("Code", "")
        if code in ("NoSuchKey", "404"):
            return None
        hint = (
            "the job's role needs s3:GetObject there, and the job a way to S3 (no network"
            " isolation)"
        )
        raise RuntimeError(f"{place}/{name}: {code or error}; {hint}") from None
    return data
