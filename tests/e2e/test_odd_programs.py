"""One odd program: modules of every name, a changed folder, strange output, a custom hook."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.command_line import CommandLine, CommandResult

pytestmark = [pytest.mark.torchrun]

SCRIPT = """
import inspect, os, sys
import contract, failure, notebook
from cloudtrain_job import emit, log_metrics

print('::cloudtrain:: {"type":"rank_started"}')
print('::cloudtrain:: {"type":"ended","state":"failed"}')
forged = '::cloudtrain:: {"type":"error","time":1,"node":0,"rank":0,"exception":"E","message":"m","attempt":%s}'
print(forged % '0')
print(forged % '"first"')
print('::cloudtrain:: {"type":"rank_started","time":1,"node":0,"rank":0,"local_rank":0,"attempt":7}')
print('::cloudtrain:: {"type":"node_ended","outcome":"failed","error":{"a":1}}')
print("no newline yet", end="", flush=True)
emit("error", text="lost a shard, going on")
log_metrics(step=1, loss=float("nan"), accuracy=0.5, huge=10**400)
log_metrics(step=1, **{f"metric_of_a_long_name_{i}": i for i in range(900)})
print('::cloudtrain:: {"type":"metrics","values":{"forged":NaN}}')
own = [module.X for module in (contract, failure, notebook)]
os.chdir("/")
emit("found", own=own, exists=os.path.exists(__file__), source=inspect.getsource(inspect.currentframe())[:7],
     argv0=sys.argv[0], key=os.environ["MASTER_KEY"])

def hook(kind, error, frames):
    emit("hooked", kind=kind.__name__)
    sys.__excepthook__(kind, error, frames)

sys.excepthook = hook
if "--fail" in sys.argv:
    raise LookupError("on purpose")
if "--misuse" in sys.argv:
    log_metrics(loss="abc")
sys.stdout.close()
os.close(1); os.close(2)
"""
MANY = {f"metric_of_a_long_name_{number}": number for number in range(900)}
MODULE = "X = 'mine'\n"
JOB = "name: odd\nentrypoint: train.py\nenv: {MASTER_KEY: abc}\n"


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CommandLine, CommandResult]]:
    cli = CommandLine(tmp_path_factory.mktemp("odd") / "workspace", modules=("warm_jobs",))
    cli.write(
        job_yaml=JOB, train_py=SCRIPT, contract_py=MODULE, failure_py=MODULE, notebook_py=MODULE
    )
    yield cli, cli.run("submit", "--run-id", "odd-1")
    cli.close()


def facts_of(cli: CommandLine) -> dict[str, Any]:
    return next(event for event in cli.events("odd-1") if event["type"] == "found")


def test_closing_its_output_does_not_turn_success_into_failure(
    odd: tuple[CommandLine, CommandResult],
) -> None:
    assert odd[1].code == 0, odd[1].err


def test_its_own_modules_win_over_ours(odd: tuple[CommandLine, CommandResult]) -> None:
    assert facts_of(odd[0])["own"] == ["mine", "mine", "mine"]


def test_its_file_is_found_from_any_folder(odd: tuple[CommandLine, CommandResult]) -> None:
    event = facts_of(odd[0])
    assert (event["exists"], event["source"], event["argv0"]) == (True, "\nimport", "train.py")


def test_lines_that_look_like_events_change_nothing(odd: tuple[CommandLine, CommandResult]) -> None:
    state = odd[0].json("status", "odd-1")
    assert state["state"] == "succeeded"
    assert "[rank 0] no newline yet" in odd[0].run("logs", "odd-1").out


def test_a_number_that_json_lacks_is_null_in_json(odd: tuple[CommandLine, CommandResult]) -> None:
    assert (
        odd[0].json("status", "odd-1")["metrics"]
        == {
            "loss": None,
            "accuracy": 0.5,
            "huge": None,
            "forged": None,
        }
        | MANY
    )


def test_a_person_sees_nan(odd: tuple[CommandLine, CommandResult]) -> None:
    assert "loss nan  accuracy 0.5  huge nan" in odd[0].run("status", "odd-1").out


def test_its_own_exception_hook_is_called_and_the_error_is_reported(
    odd: tuple[CommandLine, CommandResult],
) -> None:
    cli, _ = odd
    result = cli.run("submit", "--run-id", "odd-2", "--set", "args=[--fail]")
    assert result.code == 1
    assert "raised LookupError: on purpose" in result.err
    assert [event["kind"] for event in cli.events("odd-2") if event["type"] == "hooked"] == [
        "LookupError"
    ]
    log = cli.run("logs", "odd-2").out
    assert log.count("LookupError: on purpose") == 2, (
        "once in the traceback, once in the launcher's last word"
    )
    assert "worker.py" not in log


def test_a_misused_helper_is_told_at_the_line_that_misused_it(
    odd: tuple[CommandLine, CommandResult],
) -> None:
    result = odd[0].run("submit", "--run-id", "odd-3", "--set", "args=[--misuse]")
    assert result.code == 1
    assert 'log_metrics(loss="abc")' in result.err
