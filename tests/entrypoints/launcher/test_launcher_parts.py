"""The launcher's parts as pure functions: the job's environment, torchrun's arguments, the first
cause, event lines.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain_launcher import command, contract, environment, failure, launch, platforms
from cloudtrain_launcher.command import Host
from cloudtrain_launcher.setup_lines import run_setup
from cloudtrain_wire import causes
from cloudtrain_wire.events import Error
from cloudtrain_wire.host_memory import OutOfMemoryKills
from cloudtrain_wire.ports import free_port
from tests.entrypoints.launcher.platforms import container
from tests.support.waiting import HANG_SECONDS

ENTRYPOINTS = Path(__file__).resolve().parents[3] / "entrypoints"

JOB = contract.Job(
    run_id="job-1",
    name="job",
    kind="script",
    target="train.py",
    argv=[],
    values={"lr": 0.1},
    nodes=2,
    processes=4,
    gpus=0,
    restarts=0,
    grace_seconds=120,
    checkpoint_every_seconds=600,
    checkpoint_keep=3,
)
ENVIRON = {
    "CLOUDTRAIN_NODE_RANK": "1",
    "CLOUDTRAIN_NODES": "2",
    "CLOUDTRAIN_MASTER_ADDR": "algo-1",
    "CLOUDTRAIN_MASTER_PORT": "7777",
    "CLOUDTRAIN_NODE_ADDR": "algo-2",
    "CLOUDTRAIN_INTERFACE": "eth1",
    "CLOUDTRAIN_OUTPUT_DIR": "/o",
    "CLOUDTRAIN_MODEL_DIR": "/m",
    "CLOUDTRAIN_CHECKPOINT_DIR": "/c",
    "CLOUDTRAIN_INPUT_TRAIN": "/data/train",
    "CLOUDTRAIN_JOB_FILE": "/job.json",
}


def launcher_of(
    folder: Path,
    environ: dict[str, str] | None = None,
    context: dict[str, Any] | None = None,
    **job: Any,
) -> launch.Launcher:
    """Return the launcher of node 1 of 2; the parameters change variables, context and job."""
    node = replace(platforms.plain_context(ENVIRON | (environ or {})), **(context or {}))
    return launch.Launcher(replace(JOB, **job), node, folder)


def error(rank: int, time: float, **fields: Any) -> Error:
    reported = Error(
        rank=rank, node=0, time=time, exception="ValueError", message="x", traceback="t"
    )
    return reported.replace(**fields)


def test_the_environment_drops_variables_of_an_outer_torchrun(tmp_path: Path) -> None:
    foreign = {
        "RANK": "3",
        "WORLD_SIZE": "9",
        "PET_NNODES": "7",
        "TORCHELASTIC_RUN_ID": "x",
        "MASTER_PORT": "1",
        "MASTER_KEY": "mine",
        "NCCL_SOCKET_IFNAME": "ib0",
    }
    env = environment.job_environment(
        JOB, platforms.plain_context(ENVIRON), tmp_path, ENVIRON | foreign
    )
    assert (env["MASTER_KEY"], env["NCCL_SOCKET_IFNAME"]) == ("mine", "ib0")
    assert (env["GLOO_SOCKET_IFNAME"], env["CLOUDTRAIN_INPUT_TRAIN"]) == ("eth1", "/data/train")
    assert env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert json.loads(Path(env["CLOUDTRAIN_ARGS_FILE"]).read_text()) == {"lr": 0.1}
    assert env["PET_NNODES"] == "2"
    assert not {"RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "MASTER_PORT"} & set(env)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["cat <<'X'\na\nX", "printf unfinished; exit 3"], "exited with code 3\nunfinished"),
        (["set -e", "false; echo no"], "'false; echo no' exited with code 1"),
        (["if", "true"], "'if' exited with code "),
        (["exit 0", "true"], "'exit 0' ended the shell"),
        (["exec true"], "'exec true' ended the shell"),
    ],
)
def test_lines_of_setup_run_in_one_shell(tmp_path: Path, lines: list[str], problem: str) -> None:
    context = platforms.plain_context(ENVIRON)
    with pytest.raises(RuntimeError, match=re.escape(problem)):
        run_setup(replace(JOB, setup=lines), context, tmp_path, lambda _: None, lambda: False)


@pytest.mark.parametrize(
    "last", ["trap true EXIT", "exit 0", "exec 2>/dev/null", "set -eu", "cd /"]
)
def test_what_lines_of_setup_export_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    context = platforms.plain_context(ENVIRON)
    before = set(os.environ)
    job = replace(JOB, setup=["export MODE=fast", last])
    run_setup(job, context, tmp_path, lambda _: None, lambda: False)
    assert os.environ["MODE"] == "fast"
    assert set(os.environ) - before == {"MODE"}


@pytest.mark.parametrize("size", [10, 40_000])
def test_variables_of_awss_toolkit_hold_no_large_arguments(tmp_path: Path, size: int) -> None:
    environ = container(tmp_path)
    context = platforms.find_node_context(environ)
    job = replace(JOB, argv=["--note", "x" * size], values={"note": "x" * size})
    mine = {"SM_MODEL_DIR": "/mine"}
    env = environment.job_environment(job, context, tmp_path, environ | mine)
    assert env["SM_MODEL_DIR"] == "/mine"
    assert env.get("SM_HP_NOTE") == ("x" * size if size == 10 else None)
    assert max(map(len, env.values())) < 5_000


def test_variables_of_awss_toolkit_have_values_of_json_in_arguments(tmp_path: Path) -> None:
    environ = container(tmp_path)
    context = platforms.find_node_context(environ)
    values = {
        "fp16": "true",
        "sizes": "[1, 2]",
        "lr": "5e-5",
        "fsdp": "full_shard auto_wrap",
        "batch-size": 3,
        "open": "[" * 5_000,
    }
    job = replace(JOB, argv=[], values=values)
    env = environment.job_environment(job, context, tmp_path, environ)
    hps = {**values, "fp16": True, "sizes": [1, 2], "lr": 5e-5}
    assert json.loads(env["SM_HPS"]) == hps
    assert env["SM_HP_FP16"] == "true"
    assert env["SM_HP_BATCH-SIZE"] == env["SM_HP_BATCH_SIZE"] == "3"


def test_a_stop_ends_the_wait_for_a_name_that_never_resolves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[str] = []

    def resolve(name: str, _: object) -> None:
        names.append(name)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    platforms.wait_for_dns("algo-1", timeout_seconds=60, cancelled=lambda: len(names) == 2)
    assert names == ["algo-1"] * 2


def meet_of(node: int, port: int, seconds: float, cancelled: bool = False) -> tuple[Host, ...]:
    """Return what a node of three learns from the others."""
    variables = {"CLOUDTRAIN_MASTER_ADDR": "127.0.0.1", "CLOUDTRAIN_MASTER_PORT": str(port)}
    context = platforms.plain_context(ENVIRON | variables)
    address = "" if node == 2 else f"host-{node}"
    context = replace(context, node_rank=node, nodes=3, address=address)
    return command.meet(JOB, context, lambda: cancelled, seconds)


def test_nodes_of_a_command_learn_the_hosts_of_all_and_ignore_strangers() -> None:
    port = free_port()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(meet_of, 0, port, HANG_SECONDS)
        for text in ("", "GET /\n", '["job-2", 1, "x", 1]\n', '["job-1", 3, "x", 1]\n', "1\n"):
            with connect_when_open(port) as stranger:
                stranger.sendall(text.encode())

        with connect_when_open(port) as late:
            assert late.recv(1) == b"", "a node whose message is late must come again"

        others = [pool.submit(meet_of, node, port, HANG_SECONDS) for node in (2, 1)]
        hosts = first.result()
        assert [other.result() for other in others] == [hosts, hosts]

    assert [name for name, _ in hosts] == ["host-0", "host-1", "127.0.0.1"]
    assert len({number for _, number in hosts}) == 3
    with socket.create_server(("127.0.0.1", port)):
        pass  # the command may listen there now


def connect_when_open(port: int) -> socket.socket:
    while True:
        with suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), HANG_SECONDS)
        time.sleep(0.01)


def test_nodes_of_a_command_that_do_not_come_are_named() -> None:
    port = free_port()
    with pytest.raises(TimeoutError, match=f"node 1, 2 did not come to 127.0.0.1 port {port}"):
        meet_of(0, port, 0.1)
    with pytest.raises(TimeoutError, match="the first node did not come"):
        meet_of(1, port, 0.1)
    assert meet_of(0, port, HANG_SECONDS, cancelled=True) == ()
    assert meet_of(1, port, HANG_SECONDS, cancelled=True) == ()


def test_a_stop_after_the_end_does_not_change_the_outcome(tmp_path: Path) -> None:
    launcher = launcher_of(tmp_path)
    launcher.stop.reason = "sigterm"
    launcher.stop.requested_at = 1.0
    assert launcher.outcome(0) == ("succeeded", None)
    assert launcher.outcome(143) == ("stopped", None)


@pytest.mark.parametrize(("restarts", "outcome"), [(0, "failed"), (1, "stopped")])
def test_a_stop_during_a_restart_ends_as_stopped(
    tmp_path: Path, restarts: int, outcome: str
) -> None:
    launcher = launcher_of(tmp_path, restarts=restarts)
    launcher.ranks.errors.append(error(1, 5.0, attempt=0))
    launcher.stop.reason = "sigterm"
    launcher.stop.requested_at = 6.0
    assert launcher.outcome(143)[0] == outcome


@pytest.mark.parametrize(
    ("changes", "environ", "has_accelerator", "expected"),
    [
        ({"processes": 2}, {}, False, "true"),
        ({}, {}, False, None),
        ({"processes": 2, "gpus": 2}, {}, False, None),
        ({"processes": 2}, {}, True, None),
        ({"processes": 2}, {"ACCELERATE_USE_CPU": "false"}, False, "false"),
    ],
    ids=[
        "two processes",
        "one process",
        "GPUs are planned",
        "GPUs are there",
        "the user's own",
    ],
)
def test_accelerate_is_set_to_cpus_for_several_ranks_without_gpus(
    changes: dict[str, Any],
    environ: dict[str, str],
    has_accelerator: bool,
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "has_accelerator", lambda: has_accelerator)
    job = replace(JOB, **{"gpus": 0, "nodes": 1, "processes": 1, **changes})
    env = environment.job_environment(
        job, platforms.plain_context(ENVIRON), tmp_path, ENVIRON | environ
    )
    assert env.get("ACCELERATE_USE_CPU") == expected


def test_a_sigterm_before_all_other_errors_is_the_cause() -> None:
    sigterm = failure.exit_error(1, -signal.SIGTERM, 4.0, finished=False)
    later = error(0, 5.0)
    cause = causes.first_cause([later, sigterm])
    assert cause is not None
    assert (cause.rank, cause.exception, cause.consequence) == (1, "SIGTERM", False)
    of_torchrun = failure.exit_error(1, -signal.SIGTERM, 6.0, finished=False)
    cause = causes.first_cause([later, of_torchrun])
    assert cause is not None
    assert cause.rank == 0


def test_first_cause_is_the_earliest_primary_error_of_the_last_attempt() -> None:
    cause = causes.first_cause(
        [
            error(5, 1.0, attempt=0),
            error(0, 10.0, attempt=1, consequence=True),
            error(3, 10.1, attempt=1),
            error(1, 10.2, attempt=1),
        ]
    )
    assert cause is not None
    assert cause.rank == 3
    assert causes.first_cause([]) is None


def test_an_exit_without_an_exception_is_described_by_its_signal_or_code() -> None:
    assert (
        "SIGKILL (out of host memory?)"
        in failure.exit_error(2, -signal.SIGKILL, 1.0, finished=False).message
    )
    killed = failure.exit_error(2, -signal.SIGKILL, 1.0, finished=False, memory_was_short=True)
    assert killed.message == "was killed by SIGKILL: out of host memory"
    assert (
        "after its script had ended well"
        in failure.exit_error(2, -signal.SIGABRT, 1.0, finished=True).message
    )
    assert failure.exit_error(2, 3, 1.0, finished=False).message == "exited with code 3"
    assert failure.exit_error(2, -signal.SIGTERM, 1.0, finished=False).consequence
    assert "signal 63" in failure.exit_error(2, -63, 1.0, finished=False).message


def test_a_kill_for_want_of_memory_counts_for_two_minutes_at_most() -> None:
    counts = [100]
    times = [0.0]
    kills = OutOfMemoryKills(lambda: counts[-1], lambda: times[-1])
    assert not kills.any()
    counts.append(101)
    kinds = [kills.any()]
    for at in (30.0, 60.0, 90.0, 120.0):
        times.append(at)
        kills.refresh()
        kinds.append(kills.any())

    assert kinds == [True, True, True, True, False]


def test_the_failure_file_begins_with_the_summary_and_stays_below_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "failure"
    failure.write_failure_file(str(path), error(3, 1.0, message="m", traceback="T" * 5000))
    text = path.read_text()
    assert text.startswith("rank 3 (node 0) raised ValueError: m\n")
    assert len(text) <= 1024


texts = st.builds(str.__mul__, st.text(max_size=9), st.integers(0, 1500))


@given(texts, texts)
def test_an_event_is_one_line_below_the_limit_of_an_atomic_write(first: str, second: str) -> None:
    from cloudtrain_job import MARKER, MAX_LINE_BYTES, event_line

    line = event_line("note", first=first, second=second)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert len(line) <= MAX_LINE_BYTES
    event = json.loads(line.decode()[len(MARKER) :])
    assert (
        len(first) > 200
        or len(second) > 200
        or event["first"] == first.encode("utf-8", "replace").decode()
    )


def test_each_node_reads_the_result_of_its_own_first_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node whose ranks stopped with all others has not succeeded, even if the node itself was not
    asked to stop.
    """
    from cloudtrain_job import write_result

    monkeypatch.setenv("CLOUDTRAIN_RESULT_FILE", str(tmp_path / "result.json"))
    for rank, local_rank in ((3, 1), (2, 0)):
        assert not (tmp_path / "result.json").exists()
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        write_result("stopped", step=7)

    assert launcher_of(tmp_path).outcome(0) == ("stopped", None)


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("prctl is Linux's own")

    child = f"import os, sys, time; sys.path.insert(0, {str(ENTRYPOINTS)!r})\n"
    child += "from cloudtrain_wire.parent_death import set_parent_death_signal\n"
    child += (
        "set_parent_death_signal(os.getppid()); print('ready', os.getpid(), flush=True);"
        " time.sleep(600)"
    )
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready")
    process.kill()
    process.wait()
    assert process.stdout.read() == "", "the pipe ends when the child is gone"
    process.stdout.close()


def test_placeholders_in_arguments_become_paths_of_this_node(tmp_path: Path) -> None:
    environ = {
        "AZURE_ML_OUTPUT_images": "/images",
        "CLOUDTRAIN_INPUT_TRAIN_SET": "/data/a b",
        "CLOUDTRAIN_MODEL_DIR": "/model",
        "CLOUDTRAIN_OUTPUT_DIR": str(tmp_path),
        "CLOUDTRAIN_CHECKPOINT_DIR": "/keep",
    }
    variables = {
        "data": "${inputs.train-set}/x.csv",
        "all": ["${outputs.model}", "${outputs.output}", "${outputs.checkpoints}", 3, None],
        "azure": "${{inputs.train_set}} ${{ outputs.model }}",
        "more": "${outputs.images} ${outputs.other}",
        "not": "$HOME ${HOME} ${{HOME}} ${{inputs.train_set} ${inputs.other}",
    }
    assert environment.expand_placeholders(variables, environ) == {
        "data": "/data/a b/x.csv",
        "all": ["/model", str(tmp_path), "/keep", 3, None],
        "azure": "/data/a b /model",
        "more": f"/images {tmp_path}/other",
        "not": "$HOME ${HOME} ${{HOME}} ${{inputs.train_set} ${inputs.other}",
    }
    assert (tmp_path / "other").is_dir()


def test_an_older_python_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    with pytest.raises(SystemExit) as refusal:
        runpy.run_path(str(ENTRYPOINTS))

    assert "a job needs Python 3.10 or newer" in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1
