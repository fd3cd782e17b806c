"""Programs that run unchanged: scripts, modules, notebooks, odd ones, and their results."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.command_line import CommandLine, CommandResult
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from docker.client import DockerClient

# The kinds of program that run unchanged: scripts, modules, notebooks, and the starter that `init`
# writes.

pytestmark = pytest.mark.torchrun


def test_a_module_of_the_source_runs_as_python_dash_m_would(cli: CommandLine) -> None:
    cli.write(
        job_yaml=(
            "name: mod\nentrypoint: -m pkg.train\nargs: {lr: 1.10, verbose: true, quiet: false}\n"
        ),
        pkg____init___py="",
        pkg__train_py=(
            "import sys\nfrom pkg import other\nprint(__name__, __spec__.name, sys.argv[1:],"
            " other.X)\n"
        ),
        pkg__other_py="X = 'sibling'\n",
    )
    result = cli.run("submit")
    assert result.code == 0, result.err
    assert "__main__ pkg.train ['--lr', '1.10', '--verbose'] sibling" in cli.run("logs", "last").out


def test_an_installed_third_party_module_runs(cli: CommandLine) -> None:
    cli.write(
        job_yaml=(
            "name: timeit\nentrypoint: -m timeit\nargs: ['-n', 1, '-r', 1, 'import"
            " this_is_not_there']\n"
        )
    )
    result = cli.run("submit")
    assert result.code == 1
    assert "ModuleNotFoundError" in cli.run("logs", "last").out


def test_a_notebook_runs_as_a_script_and_names_the_failing_cell(cli: CommandLine) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# title"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "import sys\n", "x = 41"]},
        {
            "cell_type": "code",
            "source": "!pip install nothing\nprint('answer', x + 1, sys.argv[1:])",
        },
        {
            "cell_type": "code",
            "source": ["if '--fail' in sys.argv:\n", "    raise KeyError('in a cell')"],
        },
    ]
    cli.write(
        job_yaml="name: note\nentrypoint: my notebook.ipynb\nargs: [a b]\n",
        **{"my notebook_ipynb": json.dumps({"cells": cells, "nbformat": 4, "metadata": {}})},
    )
    good = cli.run("submit")
    assert good.code == 0, good.err
    log = cli.run("logs", "last").out
    assert "answer 42 ['a b']" in log
    assert "left out '%matplotlib inline'" in log
    bad = cli.run("submit", "--set", "args=[--fail]")
    assert bad.code == 1
    assert "raised KeyError: 'in a cell'" in bad.err
    assert "[cell 3]:2  raise KeyError('in a cell')" in bad.err


def test_workers_that_data_loaders_spawn_find_the_program_again(cli: CommandLine) -> None:
    cli.write(
        job_yaml="name: spawn\nentrypoint: train.py\n",
        train_py=(
            "import multiprocessing as mp\n\ndef double(x):\n    return 2 * x\n\n"
            "if __name__ == '__main__':\n    with mp.get_context('spawn').Pool(1) as pool:\n"
            "        print('doubled', pool.map(double, [21]))\n"
        ),
    )
    result = cli.run("submit")
    assert result.code == 0, result.err
    assert "doubled [42]" in cli.run("logs", "last").out


def test_the_starter_trains_at_once(cli: CommandLine) -> None:
    cli.write()
    (cli.folder / "job").mkdir(exist_ok=True)
    written = cli.run("init")
    assert written.code == 0, written.err
    assert cli.run("check").code == 0
    result = cli.run("submit")
    assert result.code == 0, result.err
    assert list((cli.run_folder(cli.json("list")[0]["run"]) / "model").glob("model.*"))
    assert cli.run("init").code == 2


# One odd program: modules of every name, a changed folder, strange output, a custom hook.

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


Odd = tuple[CommandLine, CommandResult]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Odd]:
    cli = CommandLine(tmp_path_factory.mktemp("odd") / "workspace", modules=("warm_jobs",))
    cli.write(
        job_yaml=JOB, train_py=SCRIPT, contract_py=MODULE, failure_py=MODULE, notebook_py=MODULE
    )
    yield cli, cli.run("submit", "--run-id", "odd-1")
    cli.close()


def test_an_odd_program_succeeds_with_its_own_modules_and_output(odd: Odd) -> None:
    cli, result = odd
    assert result.code == 0, f"closing its output is not a failure: {result.err}"
    (facts,) = (event for event in cli.events("odd-1") if event["type"] == "found")
    assert facts["own"] == ["mine", "mine", "mine"], "its own modules win over ours"
    assert (facts["exists"], facts["source"], facts["argv0"]) == (True, "\nimport", "train.py")


def test_lines_that_look_like_events_change_nothing_and_odd_numbers_are_null(odd: Odd) -> None:
    cli, _ = odd
    state = cli.json("status", "odd-1")
    assert state["state"] == "succeeded"
    assert "[rank 0] no newline yet" in cli.run("logs", "odd-1").out
    numbers = {"loss": None, "accuracy": 0.5, "huge": None, "forged": None}
    assert state["metrics"] == numbers | MANY
    assert "loss nan  accuracy 0.5  huge nan" in cli.run("status", "odd-1").out


def test_its_own_exception_hook_is_called_and_the_error_is_reported(
    odd: Odd,
) -> None:
    cli, _ = odd
    result = cli.run("submit", "--run-id", "odd-2", "--set", "args=[--fail]")
    assert result.code == 1
    assert "raised LookupError: on purpose" in result.err
    hooked = [event["kind"] for event in cli.events("odd-2") if event["type"] == "hooked"]
    assert hooked == ["LookupError"]
    log = cli.run("logs", "odd-2").out
    assert log.count("LookupError: on purpose") == 2, (
        "once in the traceback, once in the launcher's last word"
    )
    assert "worker.py" not in log


def test_a_misused_helper_is_told_at_the_line_that_misused_it(
    odd: Odd,
) -> None:
    result = odd[0].run("submit", "--run-id", "odd-3", "--set", "args=[--misuse]")
    assert result.code == 1
    assert 'log_metrics(loss="abc")' in result.err


# Results in the working folder are stored with the output if job.yaml says so, and reported
# otherwise.
# In containers, under every contract: test_docker.py.

KEEPING_JOB = """name: keeper
entrypoint: train.py
args: {fail: false}
resources: {nodes: 2}
limits: {max_runtime: 1 h}
keep: [out-*/, snapshot.pt, "model:config.json"]
"""
TRAIN = """
import os, sys
from pathlib import Path
rank = os.environ["RANK"]
Path("out-shakespeare").mkdir()
Path("out-shakespeare/ckpt.pt").write_text(f"of rank {rank}")
Path("last.pt").write_text("forgotten")
if rank == "0":
    Path("snapshot.pt").write_text("only rank 0")
if "--fail" in sys.argv:
    raise ValueError("as asked")
"""
KEPT = {
    "out-shakespeare/ckpt.pt": "of rank 0",
    "snapshot.pt": "only rank 0",
    "node-1/out-shakespeare/ckpt.pt": "of rank 1",
}


@pytest.mark.parametrize(
    ("flags", "code"),
    [((), 0), (("--as", "aws", "--set", "args.fail=true"), 1)],
    ids=["plain", "sagemaker-failed"],
)
def test_what_the_nodes_left_is_in_the_output_and_the_rest_is_told(
    cli: CommandLine, tmp_path: Path, flags: tuple[str, ...], code: int
) -> None:
    cli.write(job_yaml=KEEPING_JOB, train_py=TRAIN, config_json="{}")
    result = cli.run("submit", *flags)
    assert result.code == code, result.err
    shown = " ".join(result.err.split())
    assert 'keep: ["out-*/", "snapshot.pt", "model:config.json", "last.pt"] in job.yaml' in shown
    fetched = tmp_path / "fetched"
    assert cli.run("fetch", "last", str(fetched)).code == 0
    files = [path for path in (fetched / "output").rglob("*") if path.is_file()]
    assert {
        path.relative_to(fetched / "output").as_posix(): path.read_text() for path in files
    } == KEPT
    assert (fetched / "model/config.json").exists() == (code == 0)


# A source with a requirements.txt, everywhere: installed once, layered on the existing torch.

IMPORTS = """
import subprocess, sys
import torch
import pure_part, compiled_part, sees
from cloudtrain_job import emit
child = subprocess.check_output([sys.executable, "-c", "import sees; print(sees.VERSION)"], text=True).strip()
emit("seen", torch=torch.__version__, sees=sees.VERSION, child=child, place=pure_part.__file__)
"""
REQUIREMENTS = """
--no-index
--find-links %s
pure_part==1.0
compiled_part
sees
"""
PACKAGES_JOB = """
name: packages
entrypoint: train.py
image: {docker: "%s"}
aws: {region: us-east-1, role: "arn:aws:iam::123456789012:role/train", bucket: my-bucket}
limits: {max_runtime: 1 h}
"""


def write_source(cli: CommandLine, wheels: Path, image: str = "train:1") -> None:
    """A job whose requirements are one pure wheel, one for this platform alone, and one that would
    pull a new torch. Their wheels may be in the source, which nodes without a network need.
    """
    source = cli.folder / "job"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    make_wheel(wheels, "pure_part", "1.0")
    make_wheel(wheels, "compiled_part", "1.0", tag=f"py3-none-{platform}")
    make_wheel(wheels, "sees", "2.0", requires=["torch>=99"])
    make_wheel(wheels, "sees", "1.0", requires=["torch>=2"])
    make_wheel(wheels, "torch", "99.0")
    links = "wheels" if wheels.is_relative_to(source) else wheels.as_uri()
    cli.write(
        job_yaml=PACKAGES_JOB % image, train_py=IMPORTS, requirements_txt=REQUIREMENTS % links
    )


def check_runs(cli: CommandLine, runs: dict[str, CommandResult]) -> dict[str, str]:
    """All found their packages, with one torch, and the first one has installed them; their logs."""
    assert {way: run.code for way, run in runs.items()} == dict.fromkeys(runs, 0), runs
    reports = {
        way: next(e for e in cli.events(f"run-{way}") if e["type"] == "seen") for way in runs
    }
    assert {(event["sees"], event["child"]) for event in reports.values()} == {("1.0", "1.0")}
    assert not any(event["torch"].startswith("99") for event in reports.values())
    logs = {way: (cli.run_folder(f"run-{way}") / "logs" / "node-0.log").read_text() for way in runs}
    first = next(iter(logs.values()))
    assert "installing: " in first
    assert "packages: compiled_part 1.0, pure_part 1.0, sees 1.0 (installed now)" in first.replace(
        "-", "_"
    )
    for way in runs:
        activities = [
            event["activity"] for event in cli.events(f"run-{way}") if event["type"] == "activity"
        ]
        assert activities[0] == "installing"
        assert not [pair for pair in pairwise(activities) if pair[0] == pair[1]], (
            "what goes on is told once"
        )

    return logs


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    made = CommandLine(tmp_path_factory.mktemp("packages") / "a folder, with spaces")
    yield made
    made.close()


def test_they_are_installed_once_on_this_machine_whichever_cloud_is_rehearsed(
    once: CommandLine,
) -> None:
    write_source(once, once.folder / "wheels")
    ways = {"as-aws": ("--as", "aws"), "plain": ()}
    runs = {
        way: once.run("submit", "--run-id", f"run-{way}", *flags) for way, flags in ways.items()
    }
    logs = check_runs(once, runs)
    assert "installing: " not in logs["plain"]
    assert "(installed before)" in logs["plain"]
    (installed,) = (path for path in (once.data / "packages").iterdir() if path.is_dir())
    assert (installed / "bin" / "python3").exists()


@pytest.mark.docker
def test_wheels_of_the_source_are_installed_in_each_container(
    tmp_path: Path, docker_with_image: tuple[DockerClient, str]
) -> None:
    cli = CommandLine(tmp_path / "in containers")
    write_source(cli, cli.folder / "job" / "wheels", docker_with_image[1])
    ways = {"as-azure": ("--as", "azure"), "plain": ()}
    submit = ("submit", "--provider", "docker", "--run-id")
    check_runs(cli, {way: cli.run(*submit, f"run-{way}", *flags) for way, flags in ways.items()})
    cli.close()


def test_unavailable_requirement_ends_the_run_with_its_line_and_advice(
    once: CommandLine,
) -> None:
    once.write(
        requirements_txt="--no-index\nno-such-thing==3\n",
        train_py=IMPORTS,
        job_yaml=PACKAGES_JOB % "train:1",
    )
    run = once.run("submit", "--run-id", "run-bad")
    assert run.code == 1
    assert "requirements.txt:2: no-such-thing==3 cannot be installed for Python" in run.err
    assert "No matching distribution found for no-such-thing==3" in run.err
    assert "is the name right" in run.err
    assert "Traceback" not in run.err
