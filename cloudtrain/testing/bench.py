"""What the conformance suite must know of a platform, and the job folder from which it submits
there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloudtrain.planning.plan import Plan
from cloudtrain.providers import Provider, get_provider
from cloudtrain.submission.jobs import Job, load
from cloudtrain.submission.jobs import plan as make_plan

GREETING_FILE = "greeting.txt"
GREETING = "hello from the input"
"""What the input folder holds that a platform may offer to the suite: one file, and its text."""
SECRET = "never-write-this-down-5f1c"  # noqa: S105  (a secret of the suite alone)
"""The value of the secret that a platform may keep for the suite."""

LINES = 200
"""How many numbered lines each job of the suite prints."""
ARGUMENTS = ("it's", "a b", "$HOME", "")
"""Arguments of these jobs that a shell would change if it were let."""
VARIABLE = "two words, 'quotes' and $HOME"
"""The value of a variable of these jobs, for the same reason."""

PROGRAM = '''"""A job of the conformance suite: tells what it sees, prints, writes, and ends as it is told."""

import hashlib, os, sys, time
from pathlib import Path

from cloudtrain_job import emit

secret, given = os.environ.get("CONFORMANCE_SECRET", ""), os.environ.get("CLOUDTRAIN_INPUT_GREETING", "")
print("the secret is", secret, flush=True)
emit(
    "seen",
    argv=sys.argv[2:],
    variable=os.environ["CONFORMANCE_VARIABLE"],
    secret=hashlib.sha256(secret.encode()).hexdigest(),
    greeting=Path(given, "greeting.txt").read_text() if given else "",
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
    time.sleep(400)
'''.replace("LINES", str(LINES))


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A place where the provider under test can run jobs of the suite: the real one, or a stand-in
    on this machine.

    Its machines need Python with torch.
    """

    provider: str
    """The provider's name."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """Parts of job.yaml that every job there needs: the provider's own section, an image."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that the client needs: an account, where a stand-in is."""
    input: str = ""
    """Where it has a folder with the file GREETING_FILE, as a spec names it; empty: inputs are not
    tried.
    """
    secret: str = ""
    """Where it keeps SECRET, as a spec names it; empty: secrets are not tried."""


@dataclass(frozen=True)
class Bench:
    """A job folder and a home of its own, from which this process submits to a platform."""

    platform: Platform
    folder: Path

    @property
    def name(self) -> str:
        """The provider's name."""
        return self.platform.provider

    @property
    def provider(self) -> Provider:
        """A new one, as each command has it."""
        return get_provider(self.name)

    @property
    def data_dir(self) -> Path:
        """Where its runs are kept."""
        return self.folder / "data"

    @contextmanager
    def client(self) -> Iterator[None]:
        """Inside, this process is a client of the platform, in the job's folder."""
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("CLOUDTRAIN_")]:
                patch.delenv(name)
            own = {"HOME": str(self.folder / "home"), "CLOUDTRAIN_DATA_DIR": str(self.data_dir)}
            for name, value in {**own, **self.platform.env}.items():
                patch.setenv(name, value)
            patch.chdir(self.folder / "job")
            yield

    def load(self, document: Mapping[str, Any]) -> Job:
        """A job, from a file that says this: each key on a line of its own."""
        path = self.folder / "job" / "job.yaml"
        path.write_text(
            yaml.safe_dump({"name": "conformance", **document}, sort_keys=False), encoding="utf-8"
        )
        return load(path)

    def plan(self, kind: str, **more: Any) -> Plan:
        """The plan of a job that is to `succeed`, `fail` or `wait` for ever. `more`: parts of
        job.yaml.
        """
        document: dict[str, Any] = {
            "source": "source",
            "entrypoint": "train.py",
            "args": [kind, *ARGUMENTS],
            "env": {"CONFORMANCE_VARIABLE": VARIABLE},
            "limits": {"max_runtime": "1 h"},
            **self.platform.job,
        }
        if self.platform.input:
            document["inputs"] = {"greeting": {self.name: self.platform.input}}
        if self.platform.secret:
            document["secrets"] = {"CONFORMANCE_SECRET": {self.name: self.platform.secret}}
        return make_plan(self.load({**document, **more}), self.name, run_id=f"{self.name}-{kind}")


def make_bench(platform: Platform, folder: Path) -> Bench:
    """The folders, with the program of the suite's jobs."""
    for name in ("job/source", "home"):
        (folder / name).mkdir(parents=True)
    (folder / "job" / "source" / "train.py").write_text(PROGRAM, encoding="utf-8")
    return Bench(platform, folder)


class Checks:
    """The base of classes of checks: their job folder, on the platform that the provider's author
    names.
    """

    @classmethod
    @contextmanager
    def platform(cls, folder: Path) -> Iterator[Platform]:  # noqa: ARG003
        """Where the suite's jobs run; `folder` is an empty one of this class of tests. To be
        overridden.
        """
        raise NotImplementedError(
            f"{cls.__name__} does not say where its jobs run: it needs a method `platform`"
        )
        yield

    @pytest.fixture(scope="class")
    @classmethod
    def bench(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
        """The job folder of all tests of the class."""
        folder = tmp_path_factory.mktemp("conformance")
        (folder / "platform").mkdir()
        with cls.platform(folder / "platform") as platform:
            yield make_bench(platform, folder)

    @pytest.fixture(autouse=True)
    def _client(self, bench: Bench) -> Iterator[None]:
        with bench.client():
            yield


def must(holds: bool, found: str, promise: str) -> None:
    """Fail with what the provider did and what the protocol says, unless it holds."""
    if not holds:
        pytest.fail(f"{found}\nthe protocol: {promise}", pytrace=False)
