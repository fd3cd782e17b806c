"""The conformance suite is not vacuous: it reports each break of the protocol in the worked
example.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from cloudtrain.testing.bench import Bench, Platform, make_bench
from cloudtrain.testing.run_checks import submit_jobs
from examples.provider import test_ssh
from tests.support.executables import python_program
from tests.support.waiting import eventually

pytestmark = pytest.mark.linux("flock")

LAUNCHER = '''
"""Stands for Python, torch and the launcher on the machine: it runs the job's program, and tells how that ended."""
import json, os, subprocess, sys, time
from pathlib import Path

def say(kind, **more):
    event = {"type": kind, "time": time.time(), "node": 0, "rank": -1, "seq": time.time_ns(), **more}
    print("::cloudtrain::", json.dumps(event), flush=True)

job, stop = json.loads(Path(os.environ["CLOUDTRAIN_JOB_FILE"]).read_text()), Path(os.environ["CLOUDTRAIN_STOP_FILE"])
say("node_started")
env = {**os.environ, "PYTHONPATH": ".cloudtrain/job", "RANK": "0"}
with open("../printed", "w+b") as printed:
    words = [sys.executable, job["target"], *job["argv"]]
    program = subprocess.Popen(words, env=env, stdout=printed, stderr=subprocess.STDOUT)
    while program.poll() is None and not stop.exists():
        if b"waiting" in Path("../printed").read_bytes() and not stop.with_name("shown").exists():
            stop.with_name("shown").touch()
            print("waiting", flush=True)
        time.sleep(0.02)
    program.kill()
    text = Path("../printed").read_text().replace(os.environ.get("CONFORMANCE_SECRET", "no secret"), "***")
print(text, end="", flush=True)
code = program.wait()
cause = {"rank": 0, "node": 0, "time": time.time(), "exception": "ValueError", "message": "the dog ate shard 3"}
if code == 1:
    say("error", **cause)
outcome = {0: "succeeded", 1: "failed"}.get(code, "stopped")
say("node_ended", outcome=outcome, **({"error": cause} if code == 1 else {}))
sys.exit({"succeeded": 0, "failed": 1, "stopped": 5}[outcome])
'''


class Suite(test_ssh.TestSsh):
    """The suite on that machine; jobs that do not end are not waited for long."""

    timeout_seconds: ClassVar[float] = 60.0

    @classmethod
    @contextmanager
    def platform(cls, folder: Path) -> Iterator[Platform]:
        """The same as in the example, with another Python."""
        python_program(folder / "venv" / "bin" / "python3", LAUNCHER)
        with super().platform(folder) as platform:
            job = {**platform.job, "image": {"ssh": str(folder / "venv")}}
            yield Platform(**{**vars(platform), "job": job})


Suite.__test__ = False  # type: ignore[attr-defined]


@contextmanager
def broken(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch, *changes: tuple[str, str]
) -> Iterator[Bench]:
    """A bench for the example with changes to its text; its jobs are stopped at the end."""
    shutil.copytree(site, tmp_path / "site", ignore=shutil.ignore_patterns("__pycache__"))
    module = tmp_path / "site" / "cloudtrain_ssh.py"
    text = module.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    module.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    sys.modules.pop("cloudtrain_ssh", None)
    (tmp_path / "platform").mkdir()
    with Suite.platform(tmp_path / "platform") as platform:
        bench = make_bench(platform, tmp_path / "bench")
        try:
            with bench.client():
                yield bench
        finally:
            for run in (tmp_path / "platform" / "runs of ssh").glob("*"):
                (run / "stop").touch()
            sys.modules.pop("cloudtrain_ssh", None)


PLANNING = [
    (
        "its_declaration_is_complete",
        '"ssh:///data/digits"',
        '"s3://data/digits"',
        "one of the input_schemes",
    ),
    (
        "its_section_says_what_each_field_means",
        'description="where it keeps runs"',
        'title="x"',
        "no description of",
    ),
    (
        "it_has_the_whole_protocol",
        "def checks(self, plan:",
        "def checks(self, what:",
        "checks takes",
    ),
    (
        "planning_starts_no_process_and_opens_no_connection",
        "section = spec.section(SshSection)",
        'section = spec.section(SshSection); __import__("os").system("true")',
        "did more than compute",
    ),
    (
        "one_plan_makes_one_request_of_plain_json",
        '{"host": config.host',
        '{"host": __import__("secrets").token_hex()',
        "renders of one plan",
    ),
    (
        "one_plan_makes_one_request_of_plain_json",
        '{"host": config.host',
        '{"host": (config.host,)',
        "another thing when",
    ),
    (
        "neither_plan_nor_request_holds_the_value_of_a_secret",
        "f\"cat {quote(path.removeprefix('file:'))}\"",
        "'echo ' + Path(path.removeprefix('file:')).read_text()",
        "request holds the value of a secret",
    ),
    (
        "a_plan_keeps_its_config_when_it_is_stored",
        "    folder: str\n\n\nclass",
        (
            "    folder: str\n\n    def to_json(self): return {'host': self.host, 'folder':"
            " '/'}\n\n\nclass"
        ),
        "its config is",
    ),
]


@pytest.mark.parametrize(
    ("check", "old", "new", "words"), PLANNING, ids=[change[3] for change in PLANNING]
)
def test_a_break_of_the_protocol_before_the_start_is_reported(
    check: str,
    old: str,
    new: str,
    words: str,
    tmp_path: Path,
    ssh_site: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finds = pytest.raises(pytest.fail.Exception, match=words)
    with broken(tmp_path, ssh_site, monkeypatch, (old, new)) as bench, finds as failure:
        getattr(Suite(), f"test_{check}")(bench)
    assert "\nthe protocol: " in str(failure.value)


RUNNING = [
    (
        "a_run_id_is_submitted_once",
        "flock -n 9 && [ ! -e started ] || exit 0",
        "flock 9",
        "2 launchers have begun",
    ),
    (
        "a_job_that_ends_well_has_succeeded",
        'word != "running"',
        'word != "absent"',
        "has failed: not every node",
    ),
    (
        "each_line_and_event_comes_once_and_in_order",
        "{offset + 1} log | head -c 4000000",
        "{offset * 2 + 1} log | head -c 3000",
        "of 200 lines there are",
    ),
    (
        "the_job_sees_what_the_spec_says",
        'f"cat {quote(path',
        'f"echo {quote(path',
        "the job's secret is",
    ),
    (
        "fetch_brings_what_the_job_left",
        "[ ! -d {name} ]",
        "[ {name} != model ]",
        "output/output.txt is missing",
    ),
    (
        "a_running_job_stops_when_it_is_asked_and_asking_again_does_no_harm",
        "touch stop",
        "true",
        "ssh-wait has not ended after 2 s",
    ),
]


@pytest.mark.parametrize(
    ("check", "old", "new", "words"), RUNNING, ids=[change[3] for change in RUNNING]
)
def test_a_break_of_the_protocol_of_a_run_is_reported(
    check: str,
    old: str,
    new: str,
    words: str,
    tmp_path: Path,
    ssh_site: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The second start waits for the first job's end: two at once would write over each other's
    # files.
    changes = [(old, new), (">log", ">>log")] if "flock" in old else [(old, new)]
    with broken(tmp_path, ssh_site, monkeypatch, *changes) as bench:
        jobs = submit_jobs(bench, "wait" if old == "touch stop" else "succeed")
        if old == "touch stop":
            eventually(lambda: any(line.text == "waiting" for line in jobs.runs["wait"].logs()))
            monkeypatch.setattr(Suite, "timeout_seconds", 2.0)
        fixtures = {"bench": bench, "jobs": jobs, "tmp_path": tmp_path}
        method = getattr(Suite(), f"test_{check}")
        names = method.__code__.co_varnames[1 : method.__code__.co_argcount]
        with pytest.raises(pytest.fail.Exception, match=words):
            method(**{name: fixtures[name] for name in names})


def test_what_keeps_to_the_protocol_passes_on_that_machine_too(
    tmp_path: Path, ssh_site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broken(tmp_path, ssh_site, monkeypatch) as bench:
        jobs = submit_jobs(bench)
        suite = Suite()
        suite.test_a_run_id_is_submitted_once(bench, jobs)
        suite.test_a_job_that_ends_well_has_succeeded(jobs)
        suite.test_a_job_that_fails_names_its_cause(jobs)
        suite.test_each_line_and_event_comes_once_and_in_order(jobs)
        suite.test_a_running_job_stops_when_it_is_asked_and_asking_again_does_no_harm(bench, jobs)
        suite.test_no_secret_is_in_a_command_or_in_the_run_folder(jobs)
