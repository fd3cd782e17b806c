"""The identity of a process, valid for every reader of a shared disk: in other containers and on
other hosts.

Standard library only: the client and the launcher share this file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, distinguished from every other one that ever had its process id."""

    host: str
    """The host name, and the machine id where there is one (machine-id(5))."""
    boot: str
    """The kernel's random id of this boot (proc(5), boot_id); empty where there is none."""
    pid_namespace: str
    """The PID namespace in which `pid` counts (pid_namespaces(7)); empty where there are none."""
    pid: int
    start: str
    """When it began, in clock ticks since the boot (proc(5), stat); empty where that is unknown."""

    @staticmethod
    def of(pid: int) -> ProcessIdentity:
        """A process of this machine, by its id in this process's own PID namespace."""
        state = _process_stat(pid)
        return ProcessIdentity(_host(), _boot(), _namespace(), pid, state[1] if state else "")

    @staticmethod
    def from_json(value: Any) -> ProcessIdentity | None:
        """The identity that `to_json` wrote; None for anything else."""
        texts = ("host", "boot", "pid_namespace", "start")
        if not isinstance(value, Mapping) or not all(
            isinstance(value.get(key), str) for key in texts
        ):
            return None
        pid = value.get("pid")
        if not isinstance(pid, int) or isinstance(pid, bool) or not 0 < pid < 2**31:
            return None
        return ProcessIdentity(
            value["host"], value["boot"], value["pid_namespace"], pid, value["start"]
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @property
    def machine(self) -> str:
        """The host name alone, for people."""
        return self.host.partition(" ")[0]

    def shares_pid_namespace(self) -> bool:
        """Whether its process id has the same meaning here: same machine, same boot, same PID
        namespace.
        """
        return (self.host, self.boot, self.pid_namespace) == (_host(), _boot(), _namespace())

    def shares_kernel(self) -> bool:
        """Whether it runs, or ran, under the same running kernel as this process, perhaps in
        another container.
        """
        return bool(self.boot) and self.boot == _boot()

    def is_from_earlier_boot(self) -> bool:
        """Whether it ran on this machine before its last restart."""
        return self.host == _host() and bool(self.boot) and self.boot != _boot()

    def is_alive(self) -> bool | None:
        """Whether it still runs; None when that is unknown, as for one that does not share the PID
        namespace.
        """
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
            return None  # the id is in use, perhaps by another process
        if state[0] in "ZX":
            return False
        return state[1] == self.start if self.start else None


def _process_stat(pid: int) -> tuple[str, str] | None:
    """State and start time of a process: fields 3 and 22 of /proc/PID/stat (proc(5)), after a name
    with any characters.

    None when there is none, or when /proc shows another PID namespace, in which the id means
    another process.
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
