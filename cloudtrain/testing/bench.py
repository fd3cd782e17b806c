"""Description of a platform under test, and the job folder that the suite submits from."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloudtrain.api.jobs import Job, load
from cloudtrain.api.jobs import plan as make_plan
from cloudtrain.planning.plan import Plan
from cloudtrain.providers import get_provider
from cloudtrain.providers.protocol import Provider

_PROCESSES = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty")
_CONNECTIONS = (
    "socket.connect",
    "socket.bind",
    "socket.sendto",
    "socket.getaddrinfo",
    "socket.gethostbyname",
)

_RECORDING: dict[int, Effects] = {}
"""By thread: an imitated cloud may use other threads."""
_INSTALLED: list[bool] = []

GREETING_FILE = "greeting.txt"
GREETING = "hello from the input"
"""File in the input folder that a platform may offer to the suite, and its text."""
SECRET = "never-write-this-down-5f1c"  # noqa: S105  (a secret of the suite alone)
"""Value of the secret that a platform may keep for the suite."""

LINES = 200
"""Number of lines that each job of the suite prints."""
ARGUMENTS = ("it's", "a b", "$HOME", "")
"""Arguments of these jobs; a shell would change them."""
VARIABLE = "two words, 'quotes' and $HOME"
"""Value of a variable of these jobs; a shell would change it."""

PROGRAM = '''"""A job of the conformance suite: reports its environment, prints, writes and ends."""

import hashlib, os, sys, time
from pathlib import Path

from cloudtrain_job import emit

if os.environ.get("RANK", "0") != "0":  # the first rank speaks for all, and fails alone
    time.sleep(0 if sys.argv[1] == "succeed" else 1000)
    sys.exit()
secret = os.environ.get("CONFORMANCE_SECRET", "")
greeting_folder = os.environ.get("CLOUDTRAIN_INPUT_GREETING", "")
print("the secret is", secret, flush=True)
emit(
    "seen",
    argv=sys.argv[2:],
    variable=os.environ["CONFORMANCE_VARIABLE"],
    secret=hashlib.sha256(secret.encode()).hexdigest(),
    greeting=Path(greeting_folder, "greeting.txt").read_text() if greeting_folder else "",
)
for number in range(LINES):
    print(f"line {number}", flush=True)
    emit("numbered", number=number)
Path(os.environ["CLOUDTRAIN_MODEL_DIR"], "model.txt").write_text("weights")
Path(os.environ["CLOUDTRAIN_OUTPUT_DIR"], "output.txt").write_text("notes")
if sys.argv[1] == "fail":
    raise ValueError("the dog ate shard 3")
if sys.argv[1] == "wait":
    print("waiting", flush=True)
    time.sleep(1000)  # longer than the suite waits for the ends of the other jobs
'''.replace("LINES", str(LINES))


@dataclass
class Effects:
    """Effects of one thread since `recorded` began."""

    is_forbidden: bool = False
    processes: list[str] = field(default_factory=list)
    """Arguments of each process."""
    connections: list[str] = field(default_factory=list)
    """Call and address of each connection."""


@contextmanager
def recorded(*, is_forbidden: bool = False) -> Iterator[Effects]:
    """Record processes and connections of this thread; calls of git do not count.

    `is_forbidden`: they fail as well.
    """
    _install()
    thread = threading.get_ident()
    effects = Effects(is_forbidden)
    _RECORDING[thread] = effects
    try:
        yield effects
    finally:
        del _RECORDING[thread]


def _install() -> None:
    """Install the hook once: Python cannot remove it. It is cheap without a recorder."""
    if not _INSTALLED:
        _INSTALLED.append(True)
        sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if not _RECORDING or event not in _PROCESSES + _CONNECTIONS:
        return
    effects = _RECORDING.get(threading.get_ident())
    if effects is None or _is_git(event, arguments):
        return
    if event == "subprocess.Popen":
        effects.processes.append(repr(arguments[1]))
    elif event in _PROCESSES:
        effects.processes.append(repr(arguments))
    else:
        effects.connections.append(f"{event}{arguments!r}")
    if effects.is_forbidden:
        raise PermissionError(f"{event} is not allowed here")


def _is_git(event: str, arguments: tuple[Any, ...]) -> bool:
    if event != "subprocess.Popen":
        return False

    words = arguments[1]
    return isinstance(words, (list, tuple)) and bool(words) and Path(str(words[0])).name == "git"


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A place where the provider under test can run jobs: the real one, or a stand-in.

    Its machines need Python with torch.
    """

    provider: str
    """Name of the provider."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """Parts of job.yaml that every job needs: the provider's own section, an image."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that the client needs: an account, the address of a stand-in."""
    input: str = ""
    """Location of a folder with the file GREETING_FILE, as in a spec; empty to skip inputs."""
    secret: str = ""
    """Location of SECRET, as in a spec; empty to skip secrets."""
    nodes: int = 1
    """Nodes of each job of the suite, with a process each."""


@dataclass(frozen=True)
class Bench:
    """A job folder and a separate home for submissions to a platform."""

    platform: Platform
    folder: Path

    @property
    def name(self) -> str:
        """Name of the provider."""
        return self.platform.provider

    @property
    def provider(self) -> Provider:
        """Return a new provider, as each command does."""
        return get_provider(self.name)

    @property
    def data_dir(self) -> Path:
        """Folder of its runs."""
        return self.folder / "data"

    @contextmanager
    def client(self) -> Iterator[None]:
        """Make this process a client of the platform, in the job's folder."""
        with pytest.MonkeyPatch.context() as patch:
            for name in filter(_is_setting, list(os.environ)):
                patch.delenv(name)

            variables = {
                "HOME": str(self.folder / "home"),
                "CLOUDTRAIN_DATA_DIR": str(self.data_dir),
            }
            variables |= self.platform.env
            for name, value in variables.items():
                patch.setenv(name, value)
            patch.chdir(self.folder / "job")
            yield

    def load(self, document: Mapping[str, Any]) -> Job:
        """Load a job from a file with this content, each key on its own line."""
        path = self.folder / "job" / "job.yaml"
        path.write_text(
            yaml.safe_dump({"name": "conformance", **document}, sort_keys=False), encoding="utf-8"
        )
        return load(path)

    def plan(self, kind: str, **more: Any) -> Plan:
        """Plan a job that is to `succeed`, `fail` or `wait`. `more`: parts of job.yaml."""
        document: dict[str, Any] = {
            "source": "source",
            "entrypoint": "train.py",
            "args": [kind, *ARGUMENTS],
            "env": {"CONFORMANCE_VARIABLE": VARIABLE},
            "limits": {"max_runtime": "1 h"},
            "resources": {"nodes": self.platform.nodes},
            **self.platform.job,
        }
        if self.platform.input:
            document["inputs"] = {"greeting": {self.name: self.platform.input}}
        if self.platform.secret:
            document["secrets"] = {"CONFORMANCE_SECRET": {self.name: self.platform.secret}}

        document |= more
        return make_plan(self.load(document), self.name, run_id=f"{self.name}-{kind}")


def _is_setting(variable: str) -> bool:
    return variable.startswith("CLOUDTRAIN_")


def make_bench(platform: Platform, folder: Path) -> Bench:
    """Create the folders, with the program of the suite's jobs."""
    for name in ("job/source", "home"):
        (folder / name).mkdir(parents=True)
    (folder / "job" / "source" / "train.py").write_text(PROGRAM, encoding="utf-8")
    return Bench(platform, folder)


class Checks:
    """Base class of checks: their job folder, on the platform that the provider's author names."""

    @classmethod
    @contextmanager
    def platform(cls, folder: Path) -> Iterator[Platform]:  # noqa: ARG003
        """Run a platform for the suite's jobs. To be overridden.

        `folder`: an empty folder for this class of tests.
        """
        raise NotImplementedError(
            f"{cls.__name__} does not say where its jobs run: it needs a method `platform`"
        )
        yield

    @pytest.fixture(scope="class")
    @classmethod
    def bench(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
        """Share one job folder between all tests of the class."""
        folder = tmp_path_factory.mktemp("conformance")
        (folder / "platform").mkdir()
        with cls.platform(folder / "platform") as platform:
            yield make_bench(platform, folder)

    @pytest.fixture(autouse=True)
    def _client(self, bench: Bench) -> Iterator[None]:
        with bench.client():
            yield


def must(holds: bool, behavior: str, promise: str) -> None:
    """Fail with the behavior of the provider and the promise of the protocol, unless it holds."""
    if not holds:
        pytest.fail(f"{behavior}\nthe protocol: {promise}", pytrace=False)
