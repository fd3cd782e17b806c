"""A job of two nodes on the Slurm of SLURM_CONF."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cloudtrain

CONF = os.environ.get("SLURM_CONF", "")

_PIDS = Path(CONF).parent / "pids"

HAS_SLURMDBD = bool(CONF) and "slurmdbd" in Path(CONF).read_text()

NEEDS_SLURM = pytest.mark.skipif(
    not CONF or not shutil.which("sbatch"), reason="needs SLURM_CONF of `.ci/engine slurm start`"
)

_COUNTS = """
import os, time
from pathlib import Path

file = Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], f"rank-{os.environ['RANK']}.txt")
first = int(file.read_text()) if file.exists() else 0
print("begins at", first, flush=True)
for step in range(first, 1000000):
    draft = file.with_suffix(".part")
    draft.write_text(str(step))
    draft.rename(file)
    if Path("FINISH").exists():
        break
    time.sleep(0.1)
print("ends after", step, flush=True)
"""


def job_of(folder: Path, script: str, extra: str = "", **parts: str) -> Path:
    """Write a job whose nodes run `script` with one process each, and return its path.

    `extra`: further fields of the section. `parts`: further sections.
    """
    source = folder / "job"
    source.mkdir()
    (source / "train.py").write_text(script)
    job = source / "job.yaml"
    fields = {
        "name": "two",
        "entrypoint": "train.py",
        "resources": "{nodes: 2, processes: 1}",
        "image": f"{{slurm: '{sys.prefix}'}}",
        "slurm": f"{{folder: '{folder}/runs'{extra}}}",
        **parts,
    }
    job.write_text("".join(f"{name}: {value}\n" for name, value in fields.items()))
    return job


def started(job: Path) -> cloudtrain.Run:
    """Submit a job."""
    return cloudtrain.submit(cloudtrain.plan(cloudtrain.load(job), "slurm"))


def instead_of(
    program: str, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, **words: str
) -> None:
    """Put a program in front of one of Slurm, or where there is none."""
    stand_in = folder / "bin" / program
    stand_in.parent.mkdir(exist_ok=True)
    stand_in.write_text(text.format(real=shutil.which(program), **words))
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}")


def counts_until(file: Path) -> str:
    """Return a program that saves its step until a file exists, and resumes from there."""
    return _COUNTS.replace("FINISH", str(file))


def answer_of(*argv: str) -> str:
    """Return what a program of Slurm answers."""
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def client(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the client."""
    argv = [sys.executable, "-m", "cloudtrain", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def printed_by(*words: str) -> str:
    """Return what a command prints."""
    return client(*words).stdout


def rows_of(run: cloudtrain.Run, columns: str = "%i") -> list[str]:
    """Return a row of squeue for each job of the run."""
    return answer_of("squeue", "-h", "--states=all", "-o", columns, "-n", run.id).splitlines()


def log_of(folder: Path, run: cloudtrain.Run) -> str:
    """Return the logs of both nodes."""
    files = [folder / "runs" / run.id / f"node-{node}.log" for node in (0, 1)]
    return "".join(file.read_text() for file in files if file.exists())


def steps_of(folder: Path, run: cloudtrain.Run) -> int:
    """Return the lowest step that both ranks of a counting program have saved."""
    saved = folder / "runs" / run.id / "checkpoints"
    files = [saved / f"rank-{rank}.txt" for rank in (0, 1)]
    return min(int(file.read_text()) if file.exists() else 0 for file in files)


def kill_daemon_of_node_1() -> None:
    """Kill slurmd of the node n1, whose processes continue."""
    pids = [line.split() for line in _PIDS.read_text().splitlines()]
    os.kill(int(dict(pids)["slurmd-n1"]), signal.SIGKILL)


def start_daemon_of_node_1() -> None:
    """Start slurmd of the node n1 again, for stop.sh to end."""
    command = f"setsid slurmd -D -N n1 -f {CONF} >/dev/null 2>&1 </dev/null & echo $!"
    with _PIDS.open("a") as file:
        file.write(f"slurmd-n1 {answer_of('sh', '-c', command)}")
