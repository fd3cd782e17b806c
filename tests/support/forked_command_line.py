"""The real command line, each command forked from a process that has imported the SDKs: 0.05 s of CPU before it begins.

What a command is as a process stays: a session, folder, environment, streams, exit code and signals of its own. Only
what happens while modules are imported is not seen; `tests.support.command_line` starts an interpreter for each.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from tests.support.command_line import CommandLine
from tests.support.limits import HANG_SECONDS

NO_PAUSE = {
    "botocore.retries.standard": ("ExponentialBackoff", "delay_amount"),
    "azure.core.pipeline.policies": ("RetryPolicy", "get_backoff_time"),
    "azure.storage.blob._shared.policies": ("ExponentialRetry", "get_backoff_time"),
}
"""What the SDKs ask how long to wait before they try again."""
ROOT = Path(__file__).resolve().parents[2]


class ForkedCommandLine(CommandLine):
    """As `CommandLine`; the SDKs try again at once."""

    def start(self, *arguments: str, **env: str) -> ForkedProcess:  # type: ignore[override]
        """Start a command in a session of its own."""
        return ForkedProcess(list(arguments), self.folder / "job", self.environment(**env))


class ForkedProcess:
    """What tests use of `subprocess.Popen`."""

    def __init__(self, arguments: list[str], folder: Path, env: dict[str, str]) -> None:
        self._streams = [folder.parent / f"{time.monotonic_ns()}.{name}" for name in ("out", "err")]
        streams = [str(path) for path in self._streams]
        self.pid = int(_ask(arguments=arguments, folder=str(folder), env=env, streams=streams))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        if self.returncode is None:
            self.returncode = _ask(wait=self.pid)
        return self.returncode

    def wait(self, timeout: float = HANG_SECONDS) -> int:
        """Wait for its end; its exit code."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                self.send_signal(signal.SIGKILL)
                raise TimeoutError(f"process {self.pid} has not ended after {timeout} s")
            time.sleep(0.01)  # the polling interval
        return code

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def communicate(self, timeout: float = HANG_SECONDS) -> tuple[str, str]:
        """Wait for its end; what it has printed to both streams."""
        self.wait(timeout)
        out, err = (path.read_text() for path in self._streams)
        return out, err


@cache
def _server() -> subprocess.Popen[str]:
    """The process that forks; it ends, and what it has forked with it, when this one does."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forked_command_line"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # an interrupt of the tests is for nobody else
    )
    atexit.register(server.communicate)
    return server


def _ask(**request: object) -> Any:
    server = _server()
    assert server.stdin
    assert server.stdout
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())


def _become(request: dict[str, Any]) -> NoReturn:
    """Be the process of this command to its end."""
    code = 70
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as a shell starts a command
        os.setsid()
        for number, path in enumerate([os.devnull, *request["streams"]]):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), number)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["env"])
        import_module("cloudtrain.cli").main(request["arguments"])
    except SystemExit as exited:
        code = exited.code if isinstance(exited.code, int) else 0 if exited.code is None else 1
    except BaseException:  # noqa: BLE001  (shown as the interpreter shows it)
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _warm_up() -> None:
    """Submit to imitated clouds, for the modules that are imported where they are first needed."""
    from tests.fakes.aws.cloud import Cloud
    from tests.fakes.azure.cloud import IMAGE, AzureCloud
    from tests.providers.azure.jobs import forget
    from tests.support.in_process import call

    environment = dict(os.environ)
    with (
        TemporaryDirectory() as folder,
        TemporaryDirectory() as home,
        Cloud(phase_seconds=3600) as aws,
        AzureCloud(phase_seconds=3600) as azure,
    ):
        os.chdir(folder)
        os.environ.update(aws.environment() | azure.environment(), HOME=home)
        Path("train.py").touch()
        job = {"name": "warm", "entrypoint": "train.py", "limits": {"max_runtime": "1 h"}}
        for provider, more in {"aws": {}, "azure": {"image": IMAGE}}.items():
            Path("job.yaml").write_text(json.dumps(job | more))
            result = call("submit", "--provider", provider, "--detach")
            assert result.code == 0, result.err
        os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    forget()
    import_module("cloudtrain.providers.aws.client").aws.cache_clear()


def _serve() -> None:
    """Answer requests until the input ends: a command to fork, or a process to look after."""
    for module, (owner, method) in NO_PAUSE.items():
        setattr(getattr(import_module(module), owner), method, lambda *_: 0.01)
    _warm_up()
    gc.freeze()
    running: set[int] = set()
    while line := sys.stdin.readline():
        request = json.loads(line)
        if "wait" in request:
            ended, status = os.waitpid(request["wait"], os.WNOHANG)
            running.discard(ended)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        else:
            answer = os.fork() or _become(request)
            running.add(answer)
        os.write(1, f"{json.dumps(answer)}\n".encode())
    for pid in running:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _serve()
