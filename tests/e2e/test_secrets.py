"""A job with a secret in each place that its program may show: what is printed and written has none."""

from __future__ import annotations

import pytest

from tests.support.command_line import CommandLine

pytestmark = pytest.mark.torchrun

SECRETS = {
    "variable": "Zva-9f8e7d6c5b4a3",
    "address": "Zad-9f8e7d6c5b4a3",
    "argument": "Zar-9f8e7d6c5b4a3",
    "flag": "Zfl-9f8e7d6c5b4a3",
    "setup": "Zse-9f8e7d6c5b4a3",
    "member": "Zme-9f8e7d6c5b4a3",
    "stored": "Zst-9f8e7d6c5b4a3",
}
JOB = f"""
name: job
entrypoint: train.py
resources: {{processes: 1}}
args: {{api_key: {SECRETS["argument"]}}}
env: {{DB_PASSWORD: {SECRETS["variable"]}, URL: "postgres://me:{SECRETS["address"]}@host/x"}}
secrets: {{STORED: {{local: "env:MINE"}}}}
setup: export API_KEY={SECRETS["setup"]}
aws: {{request: {{Environment: {{MY_TOKEN: {SECRETS["member"]}}}}}}}
"""
TRAIN = """
import os, sys
from cloudtrain_job import log_metrics
shown = " ".join([*sys.argv, os.environ["DB_PASSWORD"], os.environ["URL"], os.environ["STORED"]])
print("logged in with", shown, flush=True)
log_metrics(step=1, **{shown: 1.0})
raise ValueError("cannot log in with " + shown)
"""
DOCUMENTS = ("plan.json", "request.json", "job.json", "spec.yaml")
"""Documents that the job is started from, with its own variables and arguments."""


def test_no_output_no_page_and_no_log_of_a_job_shows_its_secrets(cli: CommandLine) -> None:
    cli.write(job_yaml=JOB, train_py=TRAIN)
    flags = ("--set", f"args.db_password={SECRETS['flag']}")
    result = cli.run("submit", "--run-id", "one", *flags, MINE=SECRETS["stored"])
    printed = result.out + result.err
    assert result.code == 1, printed
    assert "cannot log in with" in printed

    cli.run("submit", "--run-id", "two", "--set", "args.api_key=other-9f8e7d6c", MINE="stored-2")
    views: list[list[str]] = [["list"], ["compare", "one", "two"], ["plan", "--diff", "one"]]
    for name in ("status", "logs", "metrics", "diagnose", "wait"):
        views.append([name, "one"])

    for words in views:
        for more in ([], ["--json"]):
            result = cli.run(*words, *more)
            printed += result.out + result.err

    cli.run("report", "one", "-o", "page.html")
    printed += (cli.folder / "job" / "page.html").read_text()
    for file in cli.data.rglob("*"):
        is_document = file.name in DOCUMENTS or "source" in file.parts
        if file.is_file() and not is_document:
            printed += file.read_text(errors="replace")

    assert [name for name, value in SECRETS.items() if value in printed] == []
    assert "logged in with" in printed
