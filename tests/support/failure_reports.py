"""Labelled reports of failures, harmless lines of logs, and how right a diagnosis is."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cloudtrain.diagnosis.failure import Diagnosis, diagnose_lines
from cloudtrain.diagnosis.log_text import evidence_of

DATA = Path(__file__).parents[1] / "data"
CONSEQUENCES = ("collective-timeout", "peer-lost", "terminated", "launcher-summary")

NOISE = {
    "pip": (
        "ERROR: pip's dependency resolver does not currently take into account all the packages"
        " that are installed. This behaviour is the source of the following dependency conflicts.",
        "torchaudio 2.1.0 requires torch==2.1.0, but you have torch 2.3.0 which is incompatible.",
    ),
    "handled exception": (
        "WARNING:root:the cache cannot be read; building it again",
        "Traceback (most recent call last):",
        '  File "/app/data.py", line 12, in load',
        "    return json.load(open(path))",
        "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/cache.json'",
    ),
    "warnings": (
        "/opt/lib/python3.11/site-packages/torch/cuda/__init__.py:128: UserWarning: CUDA"
        " initialization: The NVIDIA driver on your system is too old (found version 11040).",
        "  return torch._C._cuda_getDeviceCount() > 0",
        "/app/train.py:9: FutureWarning: You are using `torch.load` with `weights_only=False`",
        "/app/train.py:3: DeprecationWarning: pkg_resources is deprecated as an API",
    ),
    "wandb": ("wandb: ERROR Failed to sample metric: process no longer exists (pid=41)",),
    "caught out of memory": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"
        " capacity of 39.39 GiB of which 1.21 GiB is free.",
        "retrying with batch size 16",
    ),
    "torchvision": (
        "/opt/lib/python3.11/site-packages/torchvision/io/image.py:13: UserWarning: Failed to load"
        " image Python extension: '/opt/lib/python3.11/site-packages/torchvision/image.so:"
        " undefined symbol: _ZN3c1017RegisterOperators'If you don't plan on using image"
        " functionality from `torchvision.io`, you can ignore this warning.",
        "  warn(",
    ),
    "information": (
        "node1:41:41 [0] NCCL INFO NET/Plugin: Plugin load (libnccl-net.so) returned 2 :"
        " libnccl-net.so: cannot open shared object file: No such file or directory",
        "validation: error_rate=0.4 failed=0",
        "3 passed, 0 failed",
    ),
}
"""Harmless lines of logs by kind."""

ENDINGS = {
    "a script that copies": ("cp: cannot stat 'out/model.pt': No such file or directory",),
    "a script that prints": ("cat: results.json: No such file or directory",),
    "a script without a program": ("run.sh: line 12: notify: command not found",),
    "a full disk for a copy of the log": ("tee: output.log: No space left on device",),
    "a shell's word": ("Aborted (core dumped)",),
    "a library that is unloaded": (
        "terminate called after throwing an instance of 'c10::Error'",
        "  what():  CUDA error: driver shutting down",
    ),
    "a tracker that is refused": (
        "wandb: ERROR Error while calling W&B API: permission denied (<Response [403]>)",
    ),
    "a tracker's last words": (
        "wandb: Run history:",
        "wandb: Synced 5 W&B file(s), 0 media file(s), 0 artifact file(s) and 0 other file(s)",
    ),
    "an upload that is refused": (
        "upload failed: ./out to s3://bucket/out An error occurred (AccessDenied) when calling the"
        " PutObject operation: Access Denied",
    ),
    "words of success": ("Run completed", "Saved model to /tmp/out", "Training finished."),
    "an installation": ("Successfully installed numpy-1.26.0",),
    "a destructor": (
        "Exception ignored in: <function Popen.__del__ at 0x7f1c>",
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.10/subprocess.py", line 1130, in __del__',
        "    self._internal_poll(_deadstate=_maxsize)",
        "AttributeError: 'NoneType' object has no attribute 'maxsize'",
    ),
    "torchrun": (
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid:"
        " 41) of binary: /usr/bin/python",
    ),
    "Slurm": ("srun: error: node1: task 0: Exited with exit code 1",),
    "SageMaker": ("sagemaker-training-toolkit ERROR    ExecuteUserScriptError:", "ExitCode 1"),
}
"""Lines that other programs print behind a failure, by kind."""

TRAINING = tuple(f"step {step} loss {5 - step / 10:.2f} lr 0.001" for step in range(1, 6))


class Report(NamedTuple):
    """Lines of a failure, and the rules of its cause."""

    labels: tuple[str, ...]
    lines: list[str]
    shown: str
    """Text that a diagnosis without a rule must show; empty if there is none."""


class Outcome(NamedTuple):
    """Judgement of a diagnosis."""

    is_right: bool
    is_wrong_remedy: bool
    is_unknown: bool


def reports(name: str) -> list[Report]:
    """Read labelled reports of the test data."""
    blocks = ("\n" + (DATA / name).read_text()).split("\n### ")[1:]
    found = []
    for block in blocks:
        head, *lines = block.rstrip("\n").split("\n")
        marked = [line[2:] for line in lines if line.startswith("> ")]
        shown = evidence_of(marked[0], "", 1)[0].text if marked else ""
        plain = [line.removeprefix("> ") for line in lines]
        found.append(Report(tuple(head.split()[0].split(",")), plain, shown))
    return found


def healthy_logs() -> dict[str, list[str]]:
    """Read logs of runs that ended well."""
    blocks = (DATA / "healthy_logs.txt").read_text().split("\n### ")[1:]
    return {block.split("\n")[0]: block.rstrip("\n").split("\n")[1:] for block in blocks}


def diagnosed(lines: Iterable[str]) -> Diagnosis:
    """Diagnose lines as a log."""
    return diagnose_lines(
        evidence
        for number, line in enumerate(lines, 1)
        for evidence in evidence_of(line, "log", number)
    )


def is_told_to_have_failed(diagnosis: Diagnosis) -> bool:
    """Return True if a diagnosis names a failure."""
    says_failed = diagnosis.cause.startswith(("no rule knows", "an exception was raised"))
    return bool(diagnosis.rule or diagnosis.evidence or says_failed)


def judge(report: Report, diagnosis: Diagnosis) -> Outcome:
    """Compare a diagnosis with the label of a report."""
    name = diagnosis.rule.name if diagnosis.rule else "none"
    if name == "none":
        shown = [line.text for line in (*diagnosis.evidence, *diagnosis.last_lines)]
        is_shown = report.shown in shown if report.shown else "none" in report.labels
        return Outcome("none" in report.labels and is_shown, False, True)
    is_right = name in report.labels
    is_guess = name not in CONSEQUENCES
    return Outcome(is_right, not is_right and is_guess, not is_right and not is_guess)


@cache
def right_reports(name: str) -> list[Report]:
    """Return the reports that are diagnosed as their labels say."""
    return [report for report in reports(name) if judge(report, diagnosed(report.lines)).is_right]


def with_noise(report: Report, kind: str, *, training: bool) -> list[str]:
    """Return the lines of a report with harmless lines in front."""
    return [*NOISE[kind], *(TRAINING if training else ()), *report.lines]
