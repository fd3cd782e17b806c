"""Connection of a sweep to Ray; the only module that imports it."""

from __future__ import annotations

import os
import socket
from typing import Any

import ray

from cloudtrain.errors import CloudError
from cloudtrain.sweeps.journal import RAY_DASHBOARD, RunEnded, SweepFolder
from cloudtrain.sweeps.ray.trials import Placement, WorkerLost
from cloudtrain.sweeps.ray.worker import work
from cloudtrain_wire.bounded_files import read_regular_text

ADDRESS = "RAY_ADDRESS"
"""Environment variable with the address of the cluster, as in Ray."""
CONNECT_SECONDS = 10.0
ADDRESS_FILE = "ray-address"
"""File of the sweep's folder with RAY_ADDRESS, for a driver from another shell."""


class RayCluster:
    """Cluster of RAY_ADDRESS, or a running one on this machine, or else a new one."""

    def __init__(self, folder: SweepFolder) -> None:
        self._folder = folder.path
        self._task = ray.remote(work)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

    def connect(self) -> None:
        """Join the cluster unless that was done. Raise CloudError if it does not answer."""
        if ray.is_initialized():
            return

        (self._folder / RAY_DASHBOARD).unlink(missing_ok=True)
        address_file = self._folder / ADDRESS_FILE
        address = os.environ.get(ADDRESS) or (
            read_regular_text(address_file) if address_file.exists() else ""
        )
        _check_port(address)

        try:
            context = ray.init(
                address=address or None,
                include_dashboard=None if not address else False,  # it starts where it is installed
                log_to_driver=False,
                logging_level="WARNING",
                runtime_env=_of_workers(),
            )
        except Exception as error:  # noqa: BLE001  (a slow start raises a plain one)
            ray.shutdown()
            where = "Ray"
            if address:
                where = f"the Ray cluster at {address}"

            why = " ".join(str(error).split())[:300]
            raise CloudError(
                f"{where} cannot be reached: {why}", hint=f"{ADDRESS}=HOST:PORT", transient=True
            ) from None

        if address:
            address_file.write_text(address)
        if url := context.dashboard_url:
            (self._folder / RAY_DASHBOARD).write_text(f"http://{url}")

    def disconnect(self) -> None:
        """Leave the cluster; one that was started here ends with all its processes."""
        ray.shutdown()

    def place(self, placement: Placement) -> Any:
        """Return a worker that starts a run once the cluster has room for it."""
        task = self._task.options(
            name=placement.run,
            num_cpus=placement.cpus,
            num_gpus=placement.gpus,
            max_retries=0,  # a lost run continues as another run of its trial
        )
        return task.remote(self._folder, placement)

    def refusal(self, worker: Any) -> RunEnded | None:
        """Return the event of a run that the worker did not start; None while it works or after.

        Raise WorkerLost if it ended in another way.
        """
        try:
            finished, _ = ray.wait([worker], timeout=0)
            refusal: RunEnded | None = ray.get(worker) if finished else None
        except Exception as error:
            lines = str(error).strip().splitlines() or ["no reason is known"]
            raise WorkerLost(f"Ray has lost its worker: {lines[-1].strip()[:300]}") from error

        return refusal


def _of_workers() -> dict[str, Any] | None:
    """Return the environment of Ray's workers: our variables."""
    variables = {
        name: value for name, value in os.environ.items() if name.startswith("CLOUDTRAIN_")
    }
    if not variables:
        return None

    return {"env_vars": variables}


def _check_port(address: str) -> None:
    """Raise CloudError if HOST:PORT does not answer: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        message = f"the Ray cluster at {address} cannot be reached: {error}"
        raise CloudError(message, hint=f"{ADDRESS}=HOST:PORT", transient=True) from None
