"""`cloudtrain diagnose` of runs on this machine and in clouds."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.api.run import Run
from cloudtrain.errors import CloudError
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import format_timestamp, log_file
from cloudtrain.runs.store import RunStore
from cloudtrain_wire.causes import one_line
from cloudtrain_wire.events import Cause
from tests.support.failure_reports import NOISE, TRAINING, diagnosed
from tests.support.in_process import call
from tests.support.samples import BORN, write_events
from tests.unit.test_diagnosis_rules import EXAMPLES

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
TIMEOUT = (
    "[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=7)"
)


def a_run(
    store: RunStore, state: str, *lines: str, error: dict[str, Any] | None = None, **ended: Any
) -> RunFolder:
    folder = store.create(
        "a-1", {"plan.json": json.dumps({"provider": "local", "spec": {"name": "digits"}})}
    )
    write_events(
        folder, {**BORN, "time": 100.0}, {"type": "node_started", "time": 100.0, "node": 0}
    )
    cause = {"error": {"rank": 3, "node": 1, "time": 150.0, **error}} if error else {}
    if error:
        write_events(folder, {"type": "error", "seq": 1, **cause["error"]})
    write_events(folder, {"type": "ended", "time": 160.0, "state": state, **cause, **ended})
    log_file(folder.path, 1).parent.mkdir(exist_ok=True)
    log_file(folder.path, 1).write_text(
        "".join(f"{format_timestamp(120.0)} {line}\n" for line in lines)
    )
    return folder


def shown(*words: str) -> str:
    result = call("diagnose", *words)
    assert result.code == 0, result.err
    return result.out


def test_a_failed_run_is_explained_with_evidence_remedy_and_the_next_command(
    home: RunStore,
) -> None:
    traceback = "Traceback (most recent call last):\n  …"
    error = {
        "exception": "OutOfMemoryError",
        "message": "CUDA out of memory",
        "traceback": traceback,
    }
    a_run(
        home,
        "failed",
        f"[rank 3] {OOM}",
        f"[rank 0] {TIMEOUT}",
        error=error,
        reason="node 1 failed",
    )
    Path("job.yaml").touch()
    assert shown("a-1").splitlines() == [
        "a-1 failed after 1 min: rank 3 (node 1) raised OutOfMemoryError: CUDA out of memory",
        "  cause       the program asked for more memory than the GPU had left",
        "  evidence    rank 3 (node 1), launcher  OutOfMemoryError: CUDA out of memory",
        "  followed by a collective operation timed out: some rank did not come to it (rank 0)",
        (
            "  remedy      make the batch smaller (with gradient accumulation the result stays the"
            " same) or take a GPU with more memory"
        ),
        "  restart     the same would fail again: change something first",
        (
            "  rule        gpu-out-of-memory "
            " https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management"
        ),
        "  next        cloudtrain rerun a-1   after that change; of a setting: --set KEY=VALUE",
        (
            "              cloudtrain submit   if the program or job.yaml has changed: a rerun runs"
            " what was sent"
        ),
    ]


@pytest.mark.parametrize(
    ("ignored", "message", "remedy"),
    [
        (
            "*.log\n*.bin",
            "'data/train.bin'",
            "but .gitignore:2 leaves it out of the archive: add !data/",
        ),
        ("data", "'/opt/ml/code/data/train.bin'", "but .gitignore:1 leaves it out"),
        ("*.bin", "'train.bin'", "correct the path"),
        ("*.log", "'data/train.bin'", "correct the path"),
    ],
)
def test_a_file_that_an_ignore_rule_left_out_is_named_with_the_line_to_add(
    home: RunStore, tmp_path: Path, ignored: str, message: str, remedy: str
) -> None:
    source = tmp_path / "source"
    (source / "data").mkdir(parents=True)
    (source / "data" / "train.bin").touch()
    (source / ".gitignore").write_text(ignored)
    error = {"exception": "FileNotFoundError", "message": f"No such file or directory: {message}"}
    plan = {"provider": "local", "facts": {"source": {"root": str(source)}}}
    folder = a_run(home, "failed", error=error)
    (folder.path / "plan.json").write_text(json.dumps({**plan, "spec": {"name": "digits"}}))
    assert remedy in shown("a-1")


def test_logs_of_all_nodes_show_the_cause_behind_a_consequence(home: RunStore) -> None:
    error = {"exception": "SIGKILL", "message": "was killed by SIGKILL (out of host memory?)"}
    line = "[node 1] Memory cgroup out of memory: Killed process 7 (python3)"
    a_run(home, "failed", "[rank 3] step 1", line, error=error)
    document = json.loads(shown("a-1", "--json"))
    assert document["failure"]["rule"] == "container-memory-limit"
    assert document["failure"]["evidence"][0] == {
        "source": "node-1.log",
        "line": 2,
        "rank": None,
        "node": 1,
        "text": "Memory cgroup out of memory: Killed process 7 (python3)",
    }
    assert (
        document["next"]
        == "cloudtrain rerun a-1   after that change; of a setting: --set KEY=VALUE"
    )


def test_a_line_of_the_killed_rank_does_not_say_who_killed_it(home: RunStore) -> None:
    error = {"exception": "SIGKILL", "message": "was killed by SIGKILL (out of host memory?)"}
    line = "[rank 3] plugin: libcudart.so.11.0: cannot open shared object file"
    a_run(home, "failed", line, error=error)
    assert json.loads(shown("a-1", "--json"))["failure"]["rule"] == "killed"


ERRORS = {
    "gpu-out-of-memory": ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", True),
    "no rule of it": ("ValueError", "the dog ate shard 3", True),
    "killed": ("SIGKILL", "was killed by SIGKILL (out of host memory?)", False),
    "exit-code": ("exit", "exited with code 3", False),
    "no rule": ("SystemExit", "no config given", False),
}


@pytest.mark.parametrize("rule", ERRORS)
@pytest.mark.parametrize("kind", NOISE)
def test_a_run_is_explained_by_its_headline_whatever_its_log_says(
    home: RunStore, kind: str, rule: str
) -> None:
    exception, message, has_traceback = ERRORS[rule]
    traceback = f"Traceback (most recent call last):\n  …\n{exception}: {message}"
    error = {"exception": exception, "message": message}
    error["traceback"] = traceback * has_traceback
    noise = [f"[rank 3] {line}" for line in (*NOISE[kind], *TRAINING, "failed (exitcode: 1)")]
    a_run(home, "failed", *noise, error=error)
    failure = json.loads(shown("a-1", "--json"))["failure"]
    assert failure["rule"] == (rule if rule in EXAMPLES else None)
    assert message in failure["headline"]


GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4293"
ELASTIC = (
    "[torchrun] E1128 21:46:50.277000 5582 torch/distributed/elastic/multiprocessing/api.py:1002]"
    " failed (exitcode: 1) local_rank: 3 (pid: 5744) of binary: /usr/bin/python"
)
CRASHED = [
    "Traceback (most recent call last):",
    '  File "/data/runs/a-1/nodes/1/source/train.py", line 7, in <module>',
    "    main()",
    '  File "/data/runs/a-1/nodes/1/source/train.py", line 3, in main',
    '    return labels["dog"]',
    "KeyError: 'dog'",
]
EXITED = "exited with code 1"
SAID = "error: the tokenizer has no padding token"
OWN_LOGS: dict[str, tuple[str, str, list[str], str]] = {
    "exception": ("KeyError", "'dog'", CRASHED, "raised KeyError: 'dog'"),
    "command": ("exit", EXITED, CRASHED, f"{EXITED}: KeyError: 'dog' (train.py:3)"),
    "thread": (
        "exit",
        EXITED,
        ["Exception in thread Thread-1 (load):", *CRASHED, "no more data"],
        f"{EXITED}: KeyError: 'dog' (train.py:3)",
    ),
    "error line": ("SystemExit", "exited with code 3", [SAID], f"exited with code 3: {SAID}"),
    "last line": (
        "exit",
        "exited with code 7",
        ["watchdog: giving up"],
        "exited with code 7; it printed last: watchdog: giving up",
    ),
}
"""Exception, message and output of a rank, and the headline."""


@pytest.mark.parametrize("kind", OWN_LOGS)
def test_a_run_and_its_log_as_a_file_are_explained_alike_by_every_command(
    home: RunStore, tmp_path: Path, kind: str
) -> None:
    exception, message, output, headline = OWN_LOGS[kind]
    error: dict[str, Any] = {"exception": exception, "message": message}
    if exception == "KeyError":
        error["traceback"] = "\n".join(output)

    verdict = one_line(Cause(rank=3, node=1, time=0.0, **error))
    lines = [f"[rank 3] {line}" for line in output]
    victim = [f"[rank 0] {line}" for line in (*CRASHED[:-1], GLOO)]
    end = [ELASTIC, f"[node 1] failed: {verdict}"]
    a_run(home, "failed", *lines, *victim, *end, error=error)
    (tmp_path / "a.log").write_text(call("logs", "a-1").out)

    of_run = json.loads(shown("a-1", "--json"))["failure"]
    of_file = json.loads(shown("a.log", "--json"))["failure"]
    assert of_run["headline"] == f"rank 3 (node 1) {headline}"
    for name in ("headline", "rule", "cause", "confidence", "remedy", "restart"):
        assert of_file[name] == of_run[name], name

    assert f"because     {of_run['headline']}" in call("status", "a-1").out
    ended = call("wait", "a-1").err
    assert f"failed after 1 min: {of_run['headline']}" in ended
    assert (of_run["remedy"] or "") in ended


def test_the_verdict_of_a_failed_node_counts_before_that_of_a_lost_peer() -> None:
    verdicts = [
        f"[node 0] failed: rank 0 (node 0) raised {GLOO}",
        "[node 1] failed: rank 3 (node 1) raised KeyError: 'dog'",
    ]
    assert diagnosed(verdicts).headline == "rank 3 (node 1) raised KeyError: 'dog'"
    again = [f"[rank 3] {line}" for line in TRAINING]
    assert diagnosed([*verdicts, *again]).headline == ""
    assert diagnosed(["[rank 0] failed: rank 3 (node 1) raised KeyError: 'dog'"]).rule is None
    assert (
        diagnosed(["[node 0] failed: node 0: no index answers"]).headline
        == "node 0: no index answers"
    )


def test_status_works_with_an_unreadable_log(home: RunStore) -> None:
    folder = a_run(home, "failed", "x", error={"exception": "exit", "message": EXITED})
    log_file(folder.path, 1).unlink()
    log_file(folder.path, 1).mkdir()
    assert f"because     rank 3 (node 1) {EXITED}" in call("status", "a-1").out


def test_lines_of_the_last_successful_run_are_no_evidence(home: RunStore) -> None:
    line = "E1101 plugin.cc:7] libcudart.so.11.0: cannot open shared object file"
    good = home.create("good-1", {"plan.json": '{"provider": "local", "spec": {"name": "digits"}}'})
    write_events(
        good, {**BORN, "time": 50.0}, {"type": "ended", "time": 60.0, "state": "succeeded"}
    )
    log_file(good.path, 0).parent.mkdir(exist_ok=True)
    error = {"exception": "exit", "message": "exited with code 3"}
    a_run(home, "failed", line, error=error)
    rule = json.loads(shown("a-1", "--json"))["failure"]["rule"]
    assert rule == "library-missing"
    log_file(good.path, 0).write_text(f"{format_timestamp(55.0)} {line}\n")
    rule = json.loads(shown("a-1", "--json"))["failure"]["rule"]
    assert rule == "exit-code"


def test_the_log_of_any_program_is_read_from_a_file_and_from_a_pipe(
    home: RunStore,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    log = f"step 1\n[rank3]: {OOM}\n"
    (tmp_path / "train.log").write_text(log)
    assert "evidence    rank 3, train.log:2  torch.OutOfMemoryError" in shown("train.log")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(log.encode())))
    assert json.loads(shown("-", "--json"))["failure"]["rule"] == "gpu-out-of-memory"


def refused(store: RunStore, reason: str, hint: str) -> None:
    folder = store.create(
        "a-1", {"plan.json": json.dumps({"provider": "aws", "spec": {"name": "digits"}})}
    )
    born = {**BORN, "time": 100.0, "provider": "aws", "contract": "sagemaker"}
    write_events(
        folder,
        born,
        {"type": "ended", "time": 101.0, "state": "failed", "reason": reason, "hint": hint},
    )


def test_a_submit_that_was_refused_is_no_matter_of_the_job_s_role_and_has_no_log(
    home: RunStore,
) -> None:
    message = "PutObject: AccessDenied: Access Denied; nothing was started"
    hint = "these credentials lack s3:PutObject"
    refused(home, message, hint)
    assert shown("a-1").splitlines()[1:] == [
        f"  remedy      {hint}",
        "  next        cloudtrain rerun a-1   after that change; of a setting: --set KEY=VALUE",
        (
            "              cloudtrain submit JOB --provider aws"
            "   if the program or job.yaml has changed: a rerun runs what was sent"
        ),
    ]


@pytest.mark.parametrize(
    ("reason", "cap", "saved", "remedy", "following"),
    [
        (
            "the time limit is over (limits.max_runtime, or what limits.max_cost pays for)",
            "limits.max_cost",
            None,
            "raise limits.max_cost; no checkpoint was told of, so that a rerun begins at the start",
            "cloudtrain rerun a-1   after that change; of a setting: --set KEY=VALUE",
        ),
        (
            "the time limit is over (limits.max_runtime, or what limits.max_cost pays for)",
            "limits.max_runtime",
            40,
            "raise limits.max_runtime; cloudtrain rerun continues from the checkpoint of step 40",
            "cloudtrain rerun a-1   continues from the checkpoint of step 40",
        ),
        (
            "the time for waiting and training together is over (limits.max_wait)",
            "limits.max_runtime",
            None,
            "raise limits.max_wait; no checkpoint was told of, so that a rerun begins at the start",
            "cloudtrain rerun a-1   after that change; of a setting: --set KEY=VALUE",
        ),
    ],
)
def test_a_run_that_a_limit_has_stopped_says_which_one_to_raise(
    home: RunStore,
    reason: str,
    cap: str,
    saved: int | None,
    remedy: str,
    following: str,
) -> None:
    quote = {"price": {"usd": 1.0}, "nodes": 1, "max_seconds": 60, "cap": cap}
    plan = {"provider": "aws", "spec": {"name": "digits"}, "target": {"quote": quote}}
    folder = home.create("a-1", {"plan.json": json.dumps(plan)})
    write_events(
        folder, {**BORN, "time": 100.0}, {"type": "node_started", "time": 100.0, "node": 0}
    )
    if saved:
        write_events(
            folder,
            {"type": "checkpoint", "time": 110.0, "seq": 1, "node": 0, "rank": 0, "step": saved},
        )
    write_events(folder, {"type": "ended", "time": 160.0, "state": "stopped", "reason": reason})
    text = shown("a-1")
    assert f"  remedy      {remedy}\n" in text
    assert f"  next        {following}\n" in text
    assert "speed" not in text
    assert f"{following}\n" in call("status", "a-1").out


def test_after_a_failure_diagnose_alone_says_whether_the_same_may_succeed(home: RunStore) -> None:
    full = "[Errno 28] No space left on device: 'step-40.pt'"
    folder = home.create("a-1", {"plan.json": json.dumps({"spec": {"name": "digits"}})})
    write_events(
        folder,
        {**BORN, "time": 100.0},
        {"type": "node_started", "time": 100.0, "node": 0},
        {"type": "checkpoint", "time": 110.0, "seq": 1, "node": 0, "rank": 0, "step": 20},
        {"type": "ended", "time": 160.0, "state": "failed", "reason": full},
    )
    assert "cloudtrain rerun a-1   after that change" in shown("a-1")
    for view in ("status", "wait"):
        result = call(view, "a-1")
        assert "cloudtrain diagnose a-1" in result.out + result.err
        assert "rerun" not in result.out + result.err


def test_a_run_of_which_the_cloud_says_nothing_is_not_said_to_go_on(
    home: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home.create(
        "a-1", {"plan.json": json.dumps({"provider": "aws", "spec": {"name": "digits"}})}
    )
    born = {**BORN, "time": 100.0, "provider": "aws", "contract": "sagemaker"}
    write_events(folder, born, {"type": "submitted", "time": 101.0, "ref": {"arn": "arn:x"}})

    def refuse(run: Run) -> None:
        raise CloudError("the credentials have expired", hint="aws sso login")

    monkeypatch.setattr(Run, "status", refuse)
    text = call("diagnose", "a-1")
    assert text.code == 4
    assert text.out == "a-1 was pending when it was last seen; asking again failed\n"
    assert "the credentials have expired" in text.err
    assert "aws sso login" in text.err
