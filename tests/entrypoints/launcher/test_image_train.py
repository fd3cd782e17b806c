"""`docker run IMAGE train`: the image's command launches the job in a SageMaker container, or a
manual training.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cloudtrain_launcher import launch
from tests.entrypoints.conftest import SECRET
from tests.entrypoints.launcher.platforms import container, put_source
from tests.entrypoints.launchers import ENTRYPOINTS, clean, events
from tests.support.waiting import HANG_SECONDS

pytestmark = pytest.mark.once

TRAIN = ENTRYPOINTS.parent / "docker" / "train"

SCRIPT = """
import hashlib, json, os
from pathlib import Path
rank = os.environ["RANK"]
kept = [name for name in os.environ if name.startswith(("CLOUDTRAIN_", "NCCL_"))] + ["RANK", "WORLD_SIZE"]
seen = {name: os.environ[name] for name in kept}
seen["token"] = hashlib.sha256(os.environ["HF_TOKEN"].encode()).hexdigest()
seen |= {"cwd": os.getcwd(), "sees": Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], "step-1/shared.pt").read_text()}
Path(os.environ["CLOUDTRAIN_OUTPUT_DIR"], f"seen-{rank}.json").write_text(json.dumps(seen))
"""


def train(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TRAIN), *arguments], env=environ, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANG_SECONDS, check=False,
    )  # fmt: skip


@pytest.mark.torchrun
def test_a_container_becomes_a_job(tmp_path: Path, aws: dict[str, str]) -> None:
    inputs = {"train": {"channel": "train", "file": "k.csv"}}
    secrets = {"HF_TOKEN": "secretsmanager:hf-token"}
    environ = container(
        tmp_path, {"processes": 2, "restarts": 1, "inputs": inputs, "secrets": secrets}
    )
    del environ["CLOUDTRAIN_PLATFORM"]
    data = tmp_path / "input/data"
    for path, text in {"train/k.csv": "1", "cloudtrain-resume/step-1/shared.pt": "weights"}.items():
        (data / path).parent.mkdir(parents=True)
        (data / path).write_text(text)

    put_source(tmp_path, train=SCRIPT)
    process = train(clean(**environ, **aws), "train")
    assert process.returncode == 0, process.stdout
    assert "[node 0] restored 1 files of an earlier run's checkpoints" in process.stdout
    reports = [
        json.loads((tmp_path / f"output/data/seen-{rank}.json").read_text()) for rank in (0, 1)
    ]
    for rank, report in enumerate(reports):
        assert (
            report.items()
            >= {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "CLOUDTRAIN_PLATFORM": "sagemaker",
                "CLOUDTRAIN_INPUT_TRAIN": f"{data}/train/k.csv",
                "CLOUDTRAIN_MODEL_DIR": f"{tmp_path}/model",
                "NCCL_HOSTID": "algo-1",
                "NCCL_SOCKET_IFNAME": "lo",
                "token": hashlib.sha256(SECRET.encode()).hexdigest(),
                "cwd": f"{tmp_path}/code",
                "sees": "weights",
            }.items()
        )

    assert not (tmp_path / "output/failure").exists()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert SECRET not in process.stdout


def test_a_stop_is_handled_while_the_source_is_extracted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name, value in container(tmp_path).items():
        monkeypatch.setenv(name, value)

    put_source(tmp_path, train="print('never')")
    image = load()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(image, "unpack", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        with pytest.raises(SystemExit) as ended:
            image.main([])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

    assert ended.value.code == launch.STOPPED
    assert capsys.readouterr().err == "train: stopped before the job started\n"


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    info.size = 1 if kind == tarfile.REGTYPE else 0
    return info


HOSTILE: dict[str, list[tarfile.TarInfo]] = {
    "not a plain path": [member("../evil")],
    "not a plain path below": [member("/etc/evil")],
    "link to outside": [member("link", tarfile.SYMTYPE, "../../evil")],
    "a link to outside": [member("link", tarfile.SYMTYPE, "/etc")],
    "below a link": [member("a/b", tarfile.SYMTYPE, "."), member("a/b/c")],
    "twice": [member("x", tarfile.SYMTYPE, "y"), member("x")],
    "neither a file, a folder nor a symbolic link": [member("hard", tarfile.LNKTYPE, "train.py")],
    "nor a symbolic link": [member("pipe", tarfile.FIFOTYPE)],
}


def pack(path: Path, members: list[tarfile.TarInfo]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for info in members:
            tar.addfile(info, io.BytesIO(b"x" * info.size))


def load() -> ModuleType:
    loader = SourceFileLoader("image_train", str(TRAIN))
    spec = importlib.util.spec_from_loader("image_train", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("why", HOSTILE)
def test_nothing_is_written_outside(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delattr(tarfile, "data_filter")  # as in an older Python
    pack(tmp_path / "source.tar.gz", HOSTILE[why])
    with pytest.raises(ValueError, match=why):
        load().unpack(tmp_path / "source.tar.gz", tmp_path / "code")

    assert list((tmp_path / "code").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "source.tar.gz is missing: give the job a channel named cloudtrain-source"),
        ([member("train.py")], "there is no .cloudtrain/ in it"),
        ([member("../evil")], "is not a source archive: ../evil is not a plain path"),
    ],
)
def test_a_job_that_cannot_start_writes_why_into_the_failure_file(
    tmp_path: Path, content: Any, message: str
) -> None:
    environ = container(tmp_path)
    archive = tmp_path / "input/data/cloudtrain-source/source.tar.gz"
    if content is not None:
        pack(archive, content)

    process = train(clean(**environ), "train")
    assert process.returncode == 1
    assert message in process.stdout
    assert "Traceback" not in process.stdout
    assert (tmp_path / "output/failure").read_text() == process.stdout.removeprefix(
        "train: "
    ).rstrip("\n")


MANUAL = """
import json, os, signal, sys, time
from pathlib import Path
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
seen = {"argv": sys.argv[1:], "data": Path(os.environ["CLOUDTRAIN_INPUT_MY_DATA"], "x").read_text(), "cwd": os.getcwd()}
Path(os.environ["CLOUDTRAIN_OUTPUT_DIR"], "seen.json").write_text(json.dumps(seen))
print("training", flush=True)
while not stop:
    time.sleep(0.05)
Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], "saved").write_text("weights")
"""


@pytest.mark.torchrun
def test_a_manual_training_finds_its_data_and_an_interrupt_saves(tmp_path: Path) -> None:
    base = tmp_path / "ml"
    work = tmp_path / "work"
    (base / "input/data/my-data").mkdir(parents=True)
    (base / "input/data/my-data/x").write_text("mine")
    work.mkdir()
    (work / "own.py").write_text(MANUAL)
    environ = clean(SAGEMAKER_BASE_DIR=str(base), CLOUDTRAIN_PAYLOAD=str(ENTRYPOINTS))
    process = subprocess.Popen(
        [sys.executable, str(TRAIN), "own.py", "--lr", "0.1"], cwd=work, env=environ, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        output = list(iter(lambda: next(lines), "[rank 0] training\n"))
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=HANG_SECONDS)
    finally:
        process.kill()
        process.communicate()

    assert process.returncode == launch.STOPPED, [*output, out]
    assert events(out)[-1]["outcome"] == "stopped"
    assert (base / "checkpoints/saved").read_text() == "weights"
    report = json.loads((base / "output/data/seen.json").read_text())
    assert report == {"argv": ["--lr", "0.1"], "data": "mine", "cwd": str(work)}
