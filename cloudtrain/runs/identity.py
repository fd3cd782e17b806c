"""Which process this is, in words that hold for every reader of a shared disk: other containers, other hosts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, told apart from every other one that ever had its number."""

    host: str
    """The machine's name, and its id where it has one (machine-id(5))."""
    boot: str
    """The kernel's id of the time since it was started; empty where it has none."""
    pid_namespace: str
    """Inside which process ids are counted (pid_namespaces(7)); empty where there are none."""
    pid: int
    start: str
    """When it began, in ticks since the boot (proc(5), stat); empty where that cannot be told."""

    @staticmethod
    def of(pid: int) -> ProcessIdentity:
        """A process of this machine, by its id in our own namespace."""
        state = _process_stat(pid)
        return ProcessIdentity(_host(), _boot(), _namespace(), pid, state[1] if state else "")

    @staticmethod
    def from_json(value: Any) -> ProcessIdentity | None:
        """What `to_json` gave; None for anything else."""
        texts = ("host", "boot", "pid_namespace", "start")
        if not isinstance(value, Mapping) or not all(isinstance(value.get(key), str) for key in texts):
            return None
        pid = value.get("pid")
        if not isinstance(pid, int) or isinstance(pid, bool) or not 0 < pid < 2**31:
            return None
        return ProcessIdentity(value["host"], value["boot"], value["pid_namespace"], pid, value["start"])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @property
    def machine(self) -> str:
        """The machine's name alone, for people."""
        return self.host.partition(" ")[0]

    def shares_pid_namespace(self) -> bool:
        """Whether process ids mean the same to it and to us: same machine, same boot, same namespace."""
        return (self.host, self.boot, self.pid_namespace) == (_host(), _boot(), _namespace())

    def shares_kernel(self) -> bool:
        """Whether it runs, or ran, under the very kernel that we run under, be it in another container."""
        return bool(self.boot) and self.boot == _boot()

    def is_from_earlier_boot(self) -> bool:
        """Whether it ran on this machine before that was started anew."""
        return self.host == _host() and bool(self.boot) and self.boot != _boot()

    def is_alive(self) -> bool | None:
        """Whether it still runs; None when we cannot tell. Only for one that `shares_pid_namespace`."""
        if not self.shares_pid_namespace():
            return None
        state = _process_stat(self.pid)
        if state is None:
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return False
            except OSError:
                return None
            return None  # it is there, and we may not see whether it is the same
        if state[0] in "ZX":
            return False
        return state[1] == self.start if self.start else None


def _process_stat(pid: int) -> tuple[str, str] | None:
    """State and start of a process: the third and the 22nd field, behind a name that may hold anything.

    None, too, where /proc is that of another namespace, in which the same id is another process.
    """
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # noqa: PTH115  (a word, no path)
            return None
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return (fields[0], fields[19]) if len(fields) > 19 else None


def _host() -> str:
    name = os.uname().nodename
    try:
        return f"{name} {Path('/etc/machine-id').read_text(errors='replace').strip()}".strip()
    except OSError:
        return name


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    if sys.platform != "linux":
        return ""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
