"""Identity of a process for every reader of a shared disk, across containers and hosts.

Standard library only: the client and the launcher share this file.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, distinguished from every other with the same process id."""

    host: str
    """The host name, and the machine id if known (machine-id(5))."""
    boot: str
    """The kernel's random id of this boot (proc(5), boot_id); empty if unknown."""
    pid_namespace: str
    """The PID namespace of `pid` (pid_namespaces(7)); empty if unknown."""
    pid: int
    start: str
    """Its start, in clock ticks since the boot (proc(5), stat); empty if unknown."""

    @staticmethod
    def of(pid: int) -> ProcessIdentity:
        """Return the identity of a process by its id in this process's own PID namespace."""
        state = _process_stat(pid)
        return ProcessIdentity(_host(), _boot(), _namespace(), pid, state[1] if state else "")

    @staticmethod
    def own_text() -> str:
        """Return the identity of this process as the text of a file."""
        return json.dumps(ProcessIdentity.of(os.getpid()).to_json())

    @staticmethod
    def from_json(value: Any) -> ProcessIdentity | None:
        """Parse an identity written by `to_json`; None for other values."""
        if not isinstance(value, Mapping):
            return None

        for key in ("host", "boot", "pid_namespace", "start"):
            if not isinstance(value.get(key), str):
                return None

        pid = value.get("pid")
        if not isinstance(pid, int) or isinstance(pid, bool) or not 0 < pid < 2**31:
            return None

        return ProcessIdentity(
            value["host"], value["boot"], value["pid_namespace"], pid, value["start"]
        )

    def to_json(self) -> dict[str, Any]:
        """Return the identity as plain JSON."""
        return asdict(self)

    @property
    def machine(self) -> str:
        """Return the host name alone, for messages."""
        return self.host.partition(" ")[0]

    def shares_pid_namespace(self) -> bool:
        """Return whether its process id is valid here: same machine, boot and PID namespace."""
        return (self.host, self.boot, self.pid_namespace) == (_host(), _boot(), _namespace())

    def shares_kernel(self) -> bool:
        """Return whether it ran under the same running kernel, perhaps in another container."""
        return bool(self.boot) and self.boot == _boot()

    def is_from_earlier_boot(self) -> bool:
        """Return whether it ran on this machine before its last restart."""
        return self.host == _host() and bool(self.boot) and self.boot != _boot()

    def is_alive(self) -> bool | None:
        """Return whether it still runs; None if unknown, as in another PID namespace."""
        if not self.shares_pid_namespace():
            return None

        state = _process_stat(self.pid)

        if state is None:
            if sys.platform == "win32":  # where a signal ends a process, whatever its number
                return None

            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return False
            except OSError:
                return None

            return None  # the id is in use, perhaps by another process

        if state[0] in "ZX":
            return False

        if not self.start:
            return None

        return state[1] == self.start


def _process_stat(pid: int) -> tuple[str, str] | None:
    """Return state and start time of a process, fields 3 and 22 of /proc/PID/stat (proc(5)).

    Return None without the process, or if /proc shows another PID namespace. The process's name
    before the fields may contain any characters.
    """
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # noqa: PTH115  (a word, no path)
            return None

        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None

    if len(fields) > 19:
        return (fields[0], fields[19])

    return None


def host_name() -> str:
    """Return the name of this machine."""
    if sys.platform == "win32":
        return os.environ.get("COMPUTERNAME", "")

    return os.uname().nodename


def _host() -> str:
    name = host_name()
    try:
        machine_id = Path("/etc/machine-id").read_text("utf-8", "replace")
        return f"{name} {machine_id.strip()}".strip()
    except OSError:
        return name


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    except OSError:
        return ""


def _namespace() -> str:
    if sys.platform != "linux":
        return ""

    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
