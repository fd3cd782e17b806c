"""The life of one job: machines, environment, code and inputs, processes, and the way it ends."""

from __future__ import annotations

import math
import shutil
import time
import traceback
from pathlib import Path

from cloudtrain.planning.azureml import command_job
from cloudtrain.providers.rehearsal.base import node_addresses
from cloudtrain_wire.ports import free_port
from tests.fakes.azure.account import Account
from tests.fakes.azure.assets import Assets
from tests.fakes.azure.container_group import ContainerGroup, NoInput, blob_path_of, document
from tests.fakes.azure.jobs import Job
from tests.fakes.azure.permissions import missing_for_data, missing_for_image

STOP_FILE_POLL_SECONDS = 0.02
"""Interval between polls of a job's processes."""


class JobEnded(Exception):
    """The job ends here: its status, and why."""

    def __init__(self, status: str, message: str = "") -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


def run(job: Job, account: Account, assets: Assets) -> None:
    """Run the job in its own thread; it always reaches an end."""
    folder = account.folder / "jobs" / job.name
    try:
        _JobRun(job, account, assets, folder).live()
    except JobEnded as ended:
        job.finish(ended.status, ended.message)
    except Exception:  # noqa: BLE001  (an error of the imitation, which must not look like one of the client's)
        account.unexpected_errors.append(traceback.format_exc())
        job.finish("Failed", "InternalServerError", code="ServiceError")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _JobRun:
    def __init__(self, job: Job, account: Account, assets: Assets, folder: Path) -> None:
        self.job = job
        self.account = account
        self.assets = assets
        self.folder = folder
        self.attempts = 0
        self.ran_seconds = 0.0

    def live(self) -> None:
        """Attempt after attempt, until one ends the job."""
        while True:
            self.attempts += 1
            self._pause()
            self.job.enter("Preparing")
            self._pause()
            self.job.enter("Queued")
            self._pause()
            self._attempt(self.folder / str(self.attempts))

    def _attempt(self, folder: Path) -> None:
        job = self.job
        account = self.account
        image = self.assets.image(job.properties["environmentId"])
        self._check_rights(image or "")
        code_id = job.properties.get("codeId")
        hosts = node_addresses(job.nodes)
        contract = command_job(document(job), master=hosts[0], port=free_port(), hosts=hosts)
        group = ContainerGroup(
            job, contract, self.assets.code(code_id) if code_id else None, folder, account
        )
        try:
            group.build()
        except NoInput as missing:
            raise JobEnded(
                "Failed",
                '{"NonCompliant":"ScriptExecutionException was caused by'
                " StreamAccessException.\\n  "
                "StreamAccessException was caused by NotFoundException.\\n    Found no resources"
                " for the input "
                f"provided: '{missing.uri}'\"}}",
            ) from None
        self._pause()
        try:
            group.start()
            job.enter("Running")
            why = self._watch(group, contract.timeout_seconds)
        finally:
            group.end()
            group.keep()
        if why == "interrupted":
            job.interrupted.clear()
            job.enter("Queued")
        else:
            self._conclude(group, why)

    def _check_rights(self, image: str) -> None:
        """In the words of Azure/MachineLearningNotebooks issue 1733, and of "Troubleshoot data
        access" for its code.
        """
        machines, identity = self.account.identities_of(self.job.properties)
        if missing_for_image(image, self.account, machines):
            raise JobEnded(
                "Failed",
                "AzureMLCompute job failed.\nFailedPullingImage: Unable to pull docker"
                f" image\n\timageName: {image}\n"
                "\terror: Run docker command to pull public image failed with error: Error response"
                " from daemon: Head "
                f'"https://{image}": unauthorized: authentication required, visit'
                " https://aka.ms/acr/authorization",
            )
        if container := missing_for_data(self._containers(), self.account, identity):
            raise JobEnded(
                "Failed",
                '{"NonCompliant":"ScriptExecutionException was caused by'
                " StreamAccessException.\\n  StreamAccessException was caused by"
                " AuthenticationException.\\n    Authentication failed for the container"
                f" {container}: AuthorizationPermissionMismatch, this request is not authorized to"
                ' perform this operation using this permission."}',
            )

    def _containers(self) -> dict[str, str]:
        """The containers of the job's inputs and outputs, and whether they are read, or written
        too.
        """
        used: dict[str, str] = {}
        for kind, use in (("inputs", "r"), ("outputs", "rw")):
            for item in (self.job.properties.get(kind) or {}).values():
                place = blob_path_of(item["uri"], self.account) if item.get("uri") else ""
                if not isinstance(place, str):
                    used[place.container] = use
        return used

    def _watch(self, group: ContainerGroup, timeout_seconds: int | None) -> str:
        """Until all processes are over: why they were ended, if they were."""
        began = time.monotonic()
        limit = began + (timeout_seconds or math.inf) - self.ran_seconds
        why = ""
        while not group.poll():
            why = why or self._reason(group, late=time.monotonic() > limit)
            if why:  # without a notice: Azure ML promises no more
                group.end()
            time.sleep(STOP_FILE_POLL_SECONDS)
        self.ran_seconds += time.monotonic() - began
        return why or ("failed" if group.failed else "")

    def _reason(self, group: ContainerGroup, *, late: bool) -> str:
        """Why the processes must be ended, if they must."""
        if self.job.cancel_asked.is_set() or self.account.closing.is_set():
            return "canceled"
        if group.failed:
            return "failed"
        if self.job.interrupted.is_set():
            return "interrupted"
        return "late" if late else ""

    def _conclude(self, group: ContainerGroup, why: str) -> None:
        """End the job."""
        self.job.enter("Finalizing")
        self._pause()
        if why == "failed" and group.failed is not None:
            index, code = group.failed
            raise JobEnded(
                "Failed",
                f"Execution failed. User process '{group.contract.command.split()[0]}' exited with"
                f" status code {code}. Please check log file '{group.log_file(index)}' for error"
                " details.",
            )
        if why == "late":
            raise JobEnded("Canceled", "Job timed out")
        raise JobEnded("Canceled" if why else "Completed")

    def _pause(self) -> None:
        """A moment of nothing to do; a cancel ends the job there."""
        self.job.woken.wait(self.account.phase_seconds)
        if self.job.cancel_asked.is_set() or self.account.closing.is_set():
            raise JobEnded("Canceled")
