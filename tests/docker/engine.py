"""A Docker engine for tests: the client that speaks to it, its builders, and containers that leave
nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cloudtrain.bundle import payload_files
from cloudtrain.source.pack import pack
from cloudtrain.source.scan import scan
from tests.entrypoints.launcher.platforms import resources
from tests.entrypoints.launchers import document
from tests.support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]
BASE_VARIABLE = "CLOUDTRAIN_TEST_BASE_IMAGE"
BASE = "cloudtrain-cpu-base:local"
"""Image made by `.ci/engine base`."""

BUILD_SECONDS = 1800
RUN_SECONDS = 600


class NoEngine(Exception):
    """Why there is nothing to test with."""


class Engine:
    """One engine, and whatever these tests have made in it: all of it bears their label, or their
    tag.
    """

    def __init__(self) -> None:
        self.docker = _client()
        self.address = {"DOCKER_HOST": os.environ["DOCKER_HOST"]}  # later tests do not see it
        self.mark = f"cloudtrain-test-{uuid.uuid4().hex[:8]}"
        self._named: dict[str, str] = {}
        """Further names given by `build` -> the image that had the name before."""
        self.base = os.environ.get(BASE_VARIABLE, BASE)
        if self.call("image", "inspect", self.base).returncode != 0:
            named = BASE_VARIABLE in os.environ
            if (
                not named
                or self.call("pull", "--quiet", self.base, timeout=BUILD_SECONDS).returncode != 0
            ):
                raise NoEngine(f"no image {self.base} to build on; .ci/engine base makes one")

    def call(
        self, *argv: str, timeout: float = HANG_SECONDS, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one docker command, with both output streams together."""
        return subprocess.run(
            [self.docker, *argv], env={**os.environ, **self.address, **variables},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=timeout, check=False,
        )  # fmt: skip

    def do(self, *argv: str, timeout: float = HANG_SECONDS) -> str:
        """One docker command that must succeed."""
        process = self.call(*argv, timeout=timeout)
        assert process.returncode == 0, process.stdout
        return process.stdout.strip()

    def build(self, context: Path, tag: str, *args: str) -> subprocess.CompletedProcess[str]:
        """The image of that folder, for CPUs and on the base of these tests; a copy of docker/ is
        somebody's own.
        """
        is_project = context == ROOT / "docker"
        arguments = ("cpu",) if is_project else (str(context / "Dockerfile"), "--arg", "TORCH=cpu")
        argv = [
            sys.executable,
            "-m",
            "cloudtrain",
            "image",
            "build",
            *arguments,
            "--tag",
            f"{self.mark}:{tag}",
        ]
        argv += [word for arg in (f"BASE_IMAGE={self.base}", *args) for word in ("--arg", arg)]
        plain = {"BUILDKIT_PROGRESS": "plain"}
        before = self._names()
        process = subprocess.run(
            argv,
            env={**os.environ, **self.address, "DOCKER": self.docker, "PYTHONPATH": str(ROOT), **plain},
            cwd=context, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=BUILD_SECONDS, check=False,
        )  # fmt: skip
        for name in (process.stdout.strip(), *(("cloudtrain:cpu",) if is_project else ())):
            if process.returncode == 0:
                self._named.setdefault(name, before.get(name, ""))
        return subprocess.CompletedProcess(
            process.args, process.returncode, process.stderr + process.stdout
        )

    def image(self, tag: str) -> str:
        """The name of what `build` has made."""
        return f"{self.mark}:{tag}"

    def inspect(self, name: str) -> dict[str, Any]:
        """Return the engine's facts about an image or a container."""
        inspected: list[dict[str, Any]] = json.loads(self.do("inspect", name))
        return inspected[0]

    def layers(self, tag: str) -> list[str]:
        """The layers of an image, lowest first."""
        layer_digests: list[str] = self.inspect(self.image(tag))["RootFS"]["Layers"]
        return layer_digests

    @contextmanager
    def container(self, tag: str, *argv: str, options: tuple[str, ...] = ()) -> Iterator[str]:
        """A container that is made and not yet started; afterwards it is gone, whatever happened in
        it.
        """
        name = self.do("create", "--label", self.mark, *options, self.image(tag), *argv)
        try:
            yield name
        finally:
            self.call("rm", "--force", "--volumes", name)

    def run(self, tag: str, *argv: str, options: tuple[str, ...] = ()) -> str:
        """Return the output of a command that must succeed in a new container."""
        with self.container(tag, *argv, options=options) as name:
            return self.do("start", "--attach", name, timeout=RUN_SECONDS)

    def left(self) -> str:
        """Containers and images of these tests that are still there."""
        containers = self.do("ps", "--all", "--quiet", "--filter", f"label={self.mark}")
        return containers + self.do("images", "--quiet", self.mark)

    def _names(self) -> dict[str, str]:
        """The images of this machine that `cloudtrain image build` has named."""
        lines = self.do(
            "images", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}", "cloudtrain"
        )
        return dict(line.split(" ") for line in lines.splitlines())

    def close(self) -> None:
        """Remove what these tests have made. The builder's cache stays: the next run is quick by
        it.
        """
        for name in self.do("ps", "--all", "--quiet", "--filter", f"label={self.mark}").split():
            self.call("rm", "--force", "--volumes", name)
        # First what has gone by other names: an image that loses its last one to another would stay
        # without any.
        for name, before in self._named.items():
            self.call(*(("tag", before, name) if before else ("rmi", name)))
        for tag in self.do("images", "--format", "{{.Tag}}", self.mark).split():
            self.call("rmi", "--force", self.image(tag))
        assert self.left() == ""


def steps(log: str) -> dict[str, float]:
    """The Dockerfile's steps that BuildKit did not take from its cache, with the seconds that each
    took.
    """
    names = dict(re.findall(r"^#(\d+) (\[(?!internal).*?\] (?!FROM ).*)$", log, re.MULTILINE))
    took = re.findall(r"^#(\d+) DONE ([\d.]+)s", log, re.MULTILINE)
    return {names[number]: float(seconds) for number, seconds in took if number in names}


def _client() -> str:
    """A client that reaches an engine and has BuildKit: several may be installed, and the first may
    lack it.
    """
    paths = dict.fromkeys(path for path in (shutil.which("docker"), "/usr/bin/docker") if path)
    why = "no docker client is installed"
    for path in paths:
        if not Path(path).exists():
            continue
        result = subprocess.run(
            [path, "info"], capture_output=True, text=True, timeout=HANG_SECONDS, check=False
        )
        if result.returncode != 0:
            why = "no Docker engine answers; .ci/engine start starts one"
            continue
        why = f"{path} lacks BuildKit"
        version = subprocess.run(
            [path, "version", "--format", "{{.Client.Version}}"], capture_output=True, text=True
        )
        buildx = (
            subprocess.run([path, "buildx", "version"], capture_output=True, check=False).returncode
            == 0
        )
        if buildx or int(version.stdout.partition(".")[0] or 0) < 23:
            return path
    raise NoEngine(why)


# SageMaker's /opt/ml in a folder, to be copied into a container.

TRAINER: dict[str, Any] = {"kind": "trainer", "target": "", "processes": 2}


def tree(
    folder: Path, script: str = "", host: str = "localhost", interface: str = "lo", **job: Any
) -> Path:
    """The tree of a job of one node; its program is `script`, or what the job says."""
    base = folder / "ml"
    source = folder / "source"
    for name in (
        "input/config",
        "input/data/cloudtrain-job",
        "input/data/cloudtrain-source",
        "model",
        "output/data",
    ):
        (base / name).mkdir(parents=True)
    (base / "input/config/resourceconfig.json").write_text(
        json.dumps(resources(host, (host,), network_interface_name=interface))
    )
    (base / "input/config/hyperparameters.json").write_text("{}")
    (base / "input/data/cloudtrain-job/job.json").write_text(json.dumps(document(**job)))
    source.mkdir()
    (source / "train.py").write_text(script)
    archive = pack(scan(source, payload_files()), folder / "store")
    shutil.copy(archive, base / "input/data/cloudtrain-source/source.tar.gz")
    return base
