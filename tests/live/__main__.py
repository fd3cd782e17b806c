"""Tries in a real account what no test on loopback can prove, and prints what was seen as a table
for the pages.

    CLOUDTRAIN_LIVE=aws python -m tests.live aws

Needs credentials and an account with the resources of a template. It starts four small
jobs on the cheapest machines, each limited to a fourth of `--budget` (in USD); what they left stays
in the account's storage.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PERMISSION = "CLOUDTRAIN_LIVE"
"""The variable that permits to spend money."""
JOBS = 4
POLL_SECONDS = 5.0
DIGITS = """\
name: live-digits
args: {task: digits, strategy: ddp, epochs: 5}
resources: {nodes: 2, processes: 1}
checkpoints: {every: 5 s}
"""
FAILING = """\
name: live-failing
entrypoint: fail.py
resources: {nodes: 2, processes: 1}
"""
FAIL = """\
import os
print("hello from", os.environ["RANK"], flush=True)
if os.environ["RANK"] == "1":
    raise ValueError("as asked")
import time
time.sleep(600)
"""


class NotSeen(Exception):
    """The account did something else than expected; the message says what."""


class Account:
    """cloudtrain as a user has it, in a separate folder, with the user's credentials and settings."""

    def __init__(self, provider: str, budget: float, folder: Path) -> None:
        self.provider = provider
        self.folder = folder
        self.usd_per_job = budget / JOBS
        (folder / "job").mkdir(parents=True)
        self.environment = {name: value for name, value in os.environ.items() if name != PERMISSION}
        for name, text in {"job.yaml": DIGITS, "failing.yaml": FAILING, "fail.py": FAIL}.items():
            (folder / "job" / name).write_text(text)

    def run(self, *arguments: str, code: int = 0, data: str = "runs") -> str:
        """The output of a command of cloudtrain, both streams. Raises `NotSeen` if its exit code is
        another.

        `data`: the folder of its records.
        """
        process = subprocess.run(
            [sys.executable, "-m", "cloudtrain", *arguments],
            cwd=self.folder / "job",
            env=self.environment
            | {
                "CLOUDTRAIN_DATA_DIR": str(self.folder / data),
                "CLOUDTRAIN_RECORD": str(self.folder / "recorded"),
                "NO_COLOR": "1",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode != code:
            output = (process.stderr or process.stdout).strip()[-2000:]
            raise NotSeen(
                f"cloudtrain {' '.join(arguments)} ended with {process.returncode}, not"
                f" {code}:\n{output}"
            )
        return process.stdout + process.stderr

    def submit(self, *arguments: str, code: int = 0) -> str:
        """Submit within the budget."""
        cap = f"limits.max_cost={self.usd_per_job:.2f} USD"
        return self.run(
            "submit", *arguments, "--provider", self.provider, "--yes", "--set", cap, code=code
        )

    def status(self, run: str) -> dict[str, Any]:
        """`cloudtrain status --json`."""
        document: dict[str, Any] = json.loads(self.run("status", run, "--json"))
        return document

    def wait_until(self, run: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Look again until the status is such; `NotSeen` if the run ends before. The job's own
        limits end it.
        """
        while True:
            status = self.status(run)
            if condition(status):
                return status
            if status["state"] in ("succeeded", "failed", "stopped", "damaged"):
                raise NotSeen(f"{run} {status['state']} before that was seen")
            time.sleep(POLL_SECONDS)


def the_account_is_ready(account: Account) -> str:
    """`doctor` finds each thing that it checks"""
    return account.run("doctor", account.provider).splitlines()[-1]


def digits_are_trained_on_two_nodes(account: Account) -> str:
    """a job on two nodes trains as one world, and its metrics and its price are there"""
    account.submit("--run-id", "live-digits")
    status = account.status("live-digits")
    if status["ranks"] != 2 or status["metrics"]["val_accuracy"] < 0.5:
        raise NotSeen(f"the status is {status}")
    usd = status["billing"]["usd"]
    return f"val_accuracy {status['metrics']['val_accuracy']:.3f}, {usd:.3f} USD at list price"


def each_node_has_its_log(account: Account) -> str:
    """the logs of both nodes are readable after the end"""
    logs = [account.run("logs", "live-digits", "--node", node) for node in ("0", "1")]
    if not all(f"[node {node}]" in text for node, text in enumerate(logs)):
        raise NotSeen("a node's log lacks its launcher's lines")
    return " and ".join(f"{len(text.splitlines())} lines" for text in logs)


def the_model_is_fetched(account: Account) -> str:
    """`fetch` brings the model and the checkpoints"""
    account.run("fetch", "live-digits", str(account.folder / "fetched"), "--checkpoints")
    files = [path for path in (account.folder / "fetched").rglob("*") if path.is_file()]
    if not any(path.parts[-2] == "model" for path in files):
        raise NotSeen(f"fetched {[path.name for path in files]}")
    return f"{len(files)} files"


def another_machine_finds_the_run(account: Account) -> str:
    """another machine, without this one's records, lists the run and reads its metrics"""
    account.run("list", "--provider", account.provider, "--all", data="elsewhere")
    status = json.loads(account.run("status", "live-digits", "--json", data="elsewhere"))
    return f"state {status['state']}, val_accuracy {status['metrics']['val_accuracy']:.3f}"


def a_failure_names_its_rank(account: Account) -> str:
    """a job that fails on its second node ends with exit code 1, and the report names rank and
    reason
    """
    output = account.submit("failing.yaml", "--run-id", "live-failing", code=1)
    line = next(
        (line.strip() for line in output.splitlines() if "raised ValueError: as asked" in line),
        None,
    )
    if line is None:
        raise NotSeen(f"the report is:\n{output[-2000:]}")
    return line


def a_stop_keeps_a_checkpoint(account: Account) -> str:
    """`stop` reaches the script as SIGTERM, which saves a checkpoint"""
    account.submit("--run-id", "live-stopped", "--detach", "--set", "args.epochs=100000")
    account.wait_until(
        "live-stopped", lambda status: "val_accuracy" in (status.get("metrics") or {})
    )
    account.run("stop", "live-stopped")
    account.run("wait", "live-stopped", code=5)
    account.run("fetch", "live-stopped", str(account.folder / "stopped"), "--checkpoints")
    saved = sorted(
        path.name
        for path in (account.folder / "stopped" / "checkpoints").iterdir()
        if path.is_dir()
    )
    if not saved:
        raise NotSeen("no checkpoint was fetched")
    return f"the last one is {saved[-1]}"


def a_rerun_goes_on(account: Account) -> str:
    """`rerun` of the stopped job resumes from its checkpoint"""
    account.run("rerun", "live-stopped", "--yes", "--detach", "--set", "args.epochs=100000")
    run = json.loads(account.run("list", "--json"))[0]["run"]
    resumed = account.wait_until(run, lambda status: bool(status.get("resumed")))["resumed"]
    account.run("stop", run)
    account.run("wait", run, code=5)
    return f"from step {resumed['step']}"


FACTS: tuple[Callable[[Account], str], ...] = (
    the_account_is_ready,
    digits_are_trained_on_two_nodes,
    each_node_has_its_log,
    the_model_is_fetched,
    another_machine_finds_the_run,
    a_failure_names_its_rank,
    a_stop_keeps_a_checkpoint,
    a_rerun_goes_on,
)
"""Tried in this order: some look at the run of another. The first line of each is the fact."""


def prove(account: Account) -> list[tuple[str, str, str]]:
    """(fact, "yes" or "NO", what was seen) for each of `FACTS`; a fact that fails does not end the
    others.
    """
    rows = []
    for fact in FACTS:
        claim = " ".join((fact.__doc__ or "").split())
        print(f"... {claim}", file=sys.stderr, flush=True)
        try:
            rows.append((claim, "yes", fact(account)))
        except (NotSeen, KeyError, TypeError, OSError, ValueError) as error:
            print(f"NOT SEEN: {error}", file=sys.stderr, flush=True)
            rows.append((claim, "NO", str(error).splitlines()[0]))
    return rows


def main(argv: list[str]) -> int:
    """Return 0 if all checks passed, 1 if not, 2 if none ran."""
    parser = argparse.ArgumentParser(prog="python -m tests.live", description=__doc__)
    parser.add_argument("provider", choices=["aws", "azure"])
    parser.add_argument(
        "--budget", type=float, default=1.0, metavar="USD", help="for all jobs together [1.0]"
    )
    options = parser.parse_args(argv)
    if os.environ.get(PERMISSION) != options.provider:
        print(
            f"this costs money: set {PERMISSION}={options.provider} to say that it may",
            file=sys.stderr,
        )
        return 2
    folder = Path(tempfile.mkdtemp(prefix="cloudtrain-live-"))
    rows = prove(Account(options.provider, options.budget, folder))
    version = subprocess.run(
        [sys.executable, "-m", "cloudtrain", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    print(
        f"Seen on {options.provider}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d},"
        f" {version.stdout.strip()}:\n"
    )
    print("| what | seen | how |\n|---|---|---|")
    for row in rows:
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    print(
        f"\nThe runs and the fetched files are in {folder}, the exchanges without names in"
        f" {folder / 'recorded'}.",
        file=sys.stderr,
    )
    return 0 if all(passed == "yes" for _, passed, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
