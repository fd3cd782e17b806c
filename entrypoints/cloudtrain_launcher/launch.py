"""The launcher: the first process on each node. Standard library only.

It reads the node's context and the job document, looks up secrets, restores checkpoints, waits for
the nodes' names to resolve, runs torchrun or a command, and finds the first cause of a failure.
Exit codes: 0 succeeded, 1 failed, 5 stopped.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

from cloudtrain_launcher import flight_recorder
from cloudtrain_launcher.contract import Job, NodeContext, read_job, with_job_file, with_trial
from cloudtrain_launcher.packages.installation import Installation
from cloudtrain_launcher.platforms import find_failure_file, find_node_context, wait_for_dns
from cloudtrain_launcher.rank_tracker import RankTracker
from cloudtrain_launcher.reporting import (
    brief_cause,
    emit,
    log,
    mask_error,
    mask_secrets,
    node_error,
    report_failure,
)
from cloudtrain_launcher.restore import restore
from cloudtrain_launcher.service_metric import ServiceMetric
from cloudtrain_launcher.setup_lines import run_setup
from cloudtrain_launcher.stop import REQUESTED_REASONS, TRIAL_REASONS, StopRequest
from cloudtrain_launcher.storage_sync import JOURNAL_NAME, StorageSync
from cloudtrain_launcher.stored_secrets import look_up
from cloudtrain_launcher.torchrun import TorchrunExit, run_torchrun
from cloudtrain_launcher.trial import PORT_OFFSET, Announcer, Trial, TrialMemory, TrialWatch, listen
from cloudtrain_launcher.usage import UsageSampler
from cloudtrain_launcher.working_folder import Kept, WorkingFolder
from cloudtrain_wire.events import (
    Activity,
    Checkpoint,
    Error,
    Event,
    Metrics,
    NodeEnded,
    NodeStarted,
    Warned,
)
from cloudtrain_wire.parent_death import set_parent_death_signal
from cloudtrain_wire.processes import adopt_orphans
from cloudtrain_wire.sizes import format_size
from cloudtrain_wire.visible_gpus import visible_gpus

Outcome = Literal["succeeded", "failed", "stopped"]
_RESULTS: tuple[Outcome, ...] = ("succeeded", "stopped")
"""Outcomes that a rank may write into the result file."""

SUCCEEDED = 0
FAILED = 1
STOPPED = 5
NODE_RANK = "CLOUDTRAIN_NODE_RANK"
SUPERVISOR_PID = "CLOUDTRAIN_SUPERVISOR_PID"

_TRAINED_SEPARATELY = (
    "the processes of this job never formed one torch.distributed group, or exchanged nothing in"
    " it: unless something else connects them (Horovod, JAX), each trained a model of its own. Call"
    " torch.distributed.init_process_group() and wrap the model (DistributedDataParallel,"
    " fully_shard), or ask for one process; launch.require_group: true in the spec makes this a"
    " failure"
)


def main() -> int:
    """Run this node's part of the job; return the exit code: 0 succeeded, 1 failed, 5 stopped."""
    if SUPERVISOR_PID in os.environ:
        set_parent_death_signal(int(os.environ[SUPERVISOR_PID]), signal.SIGTERM)
    adopt_orphans()
    with ExitStack() as stack:
        try:
            context = find_node_context(os.environ)
            os.environ[NODE_RANK] = str(context.node_rank)
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cloudtrain-")))
            context = with_trial(with_job_file(context, scratch), scratch)
            job = read_job(context.job_file)
        except (RuntimeError, OSError) as error:
            return _fail_before_start(error)
        return Launcher(job, context, scratch).run()


class Launcher:
    """One node's part of a job, from start to exit code. `scratch`: for temporary files."""

    def __init__(self, job: Job, context: NodeContext, scratch: Path) -> None:
        self.job = job
        self.context = context
        self.scratch = scratch
        self.ranks = RankTracker(job, context.node_rank, self._on_metrics)
        self.usage = UsageSampler(emit, gpus=job.gpus > 0)
        self.stop = StopRequest(
            context.stop_file, job.stop_after_seconds, self._log, context.scheduled_events_url
        )
        self.storage_sync = StorageSync(
            context.synced_dirs, self._log, context.linked_dirs, scratch / JOURNAL_NAME
        )
        uploaded = [Path(folder).name for folder in context.linked_dirs]
        self.working_folder = WorkingFolder(Path.cwd(), job.keep, uploaded, time.time_ns())
        self.trial: TrialWatch | None = None
        self.announcer: Announcer | None = None
        self.unsaved: Error | None = None
        """Error of the last copy to storage; empty if all files were saved."""
        if job.trial:
            restartable = context.platform != "plain"
            memory = TrialMemory(Path(context.checkpoint_dir) if restartable else None, job.run_id)
            self.trial = TrialWatch(
                Trial.from_json(job.trial), context.published, emit, self._end_trial, memory
            )
        self.service_metric: ServiceMetric | None = None
        if job.service_metric and context.node_rank == 0:  # the first rank's node
            self.service_metric = ServiceMetric(
                job.service_metric, context.hyperparameters, os.environ, self._warn
            )
        self._activity = ""

    def run(self) -> int:
        """Prepare the node, run torchrun and save the results; return the launcher's exit code."""
        started = time.monotonic()
        since = time.time()
        self.stop.listen()
        emit(NodeStarted(pid=os.getpid(), host=os.uname().nodename, scratch=str(self.scratch)))
        try:
            self._check_nodes()
            self._check_gpus()
            self._prepare()
            self.usage.start()
            ended = run_torchrun(
                self.job, self.context, self.scratch, self.stop, self.ranks, self.on_event
            )
        except (RuntimeError, TimeoutError, OSError) as error:
            self.ranks.add_error(node_error(error))
            ended = TorchrunExit(1)
        self.usage.stop()
        if self.service_metric is not None:
            self.service_metric.finish()
        if recorded := flight_recorder.finish(self.context.output_dir, since):
            self._warn(recorded)
        if self.context.synced_dirs or self.job.keep:
            self._begin("saving")
        problem = self._keep_results(succeeded=ended.code == 0)
        if problem:
            self.ranks.add_error(
                node_error(OSError(f"not all files that `keep` means were kept: {problem}"))
            )
            ended = ended._replace(code=ended.code or 1)
        problem = self.storage_sync.finish()
        if problem:
            unsaved = node_error(
                OSError(f"not all files of this node were saved to storage: {problem}")
            )
            self.unsaved = self.ranks.add_error(unsaved)
            ended = ended._replace(code=1)
        code = self.conclude(ended.code, time.monotonic() - started, killed=ended.killed)
        self.stop.wait_for_preemption()
        if self.announcer is not None:
            self.announcer.close()
        return code

    def _check_nodes(self) -> None:
        """Check the number of nodes; without a common group each would train a separate model."""
        size = self.context.nodes
        planned = self.job.nodes
        if size != planned:
            raise RuntimeError(
                f"according to the platform this job has {size}"
                f" {'node' if size == 1 else 'nodes'}, the plan says {planned}: they would not"
                " train one model together"
            )

    def _check_gpus(self) -> None:
        if self.job.gpus and (gpus := visible_gpus()) < self.job.gpus:
            raise RuntimeError(f"this node shows {gpus} GPUs, the plan says {self.job.gpus}")

    def _prepare(self) -> None:
        """Look up secrets, create folders, install packages, restore checkpoints, await names."""
        context = self.context
        packages = Installation(context, self.scratch)
        os.environ.update(look_up(self.job.secrets, os.environ, self.stop.is_requested))
        mask_secrets(self.job, os.environ)
        for folder in (context.output_dir, context.model_dir, context.checkpoint_dir):
            Path(folder).mkdir(parents=True, exist_ok=True)
        if self.job.dependencies:
            self._begin("installing")
            # In parallel with the restore of checkpoints, which may also take minutes.
            packages.start(os.environ)
        # Checkpoints of this job's attempts are in its storage; an earlier run's are not.
        self._restore(context.synced_dirs.get(context.checkpoint_dir, ""), link_large_files=True)
        self.storage_sync.mark_synced()
        self._restore(context.resume_dir)
        if context.node_rank > 0:
            # the first node saves an earlier run's checkpoints for all
            self.storage_sync.mark_synced()
        self.storage_sync.start()
        if context.nodes > 1:
            self._begin("waiting for peers")
        # Also wait for this node's own name, which its peers use.
        for name in dict.fromkeys((context.master_addr, context.address or context.master_addr)):
            wait_for_dns(name, cancelled=self.stop.is_requested)
        self._connect_peers()
        if self.job.dependencies:
            self._begin("installing")
            self._finish(packages)
        if self.job.setup:
            self._begin("setting up")
            python = run_setup(self.job, context, self.scratch, self._log, self.stop.is_requested)
            self.context = replace(context, python=python)

    def _connect_peers(self) -> None:
        """Open the channel that reports the end of a trial's first node to the other nodes."""
        address = self.context.master_addr
        port = self.context.master_port + PORT_OFFSET
        if not self.job.trial or self.context.nodes == 1:
            return
        if self.context.node_rank > 0:
            listen(address, port, self.stop.on_first_node)
            return
        try:
            self.announcer = Announcer(address, port)
        except RuntimeError as error:
            self._warn(f"cannot notify the trial's other nodes of an early end: {error}")

    def _end_trial(self, outcome: str) -> None:
        if self.announcer is not None:
            # First: peers' ranks fail soon after this node's ranks end.
            self.announcer.announce(outcome)
        self.stop.end_trial(outcome)

    def _finish(self, packages: Installation) -> None:
        """Wait for the packages and activate them for this node's programs."""
        warnings = packages.finish(os.environ, self.stop.is_requested)
        self._begin("waiting for peers" if self.context.nodes > 1 else "")
        if self.context.node_rank == 0:
            for text in warnings:
                self._warn(text)
            if packages.installed:
                self._log(packages.summary())

    def _restore(self, saved: str, *, link_large_files: bool = False) -> None:
        if Path(saved or os.devnull).is_dir():
            self._begin("restoring")
            folder = Path(self.context.checkpoint_dir)
            node = self.context.node_rank
            cancelled = self.stop.is_requested
            restore(
                Path(saved), folder, node, self._log, cancelled, link_large_files=link_large_files
            )

    def on_event(self, event: Event) -> None:
        """Process an event of a rank or of torchrun."""
        self.usage.on_event(event)
        self.ranks.on_event(event)
        if isinstance(event, Checkpoint):
            self.storage_sync.sync_soon()

    def _on_metrics(self, event: Metrics) -> None:
        if self.service_metric is not None:
            self.service_metric.on_metrics(event)
        if self.trial is not None and not self.stop.reason:
            self.trial.on_metrics(event)

    def _keep_results(self, *, succeeded: bool) -> str:
        """Keep files of the working folder as the job requests, and warn of the remaining ones.

        Return the first error, or ''. The files of the first node keep their paths. Only a run that
        succeeded has a model, which is the first node's.
        """
        node = self.context.node_rank
        errors: list[str] = []
        if succeeded and node == 0:
            model = Path(self.context.model_dir)
            kept = self.working_folder.keep(model, with_model=True)
            errors += self._report_kept(kept, "model", warns=True)

        output = Path(self.context.output_dir)
        if node:
            output /= f"node-{node}"

        kept = self.working_folder.keep(output)
        errors += self._report_kept(kept, "output", warns=succeeded and node == 0)
        if warning := self.working_folder.warning(_program(self.job)):
            self._warn(warning)

        return next(iter(errors), "")

    def _report_kept(self, kept: Kept, place: str, *, warns: bool) -> list[str]:
        """Log what was kept with the `place`; return the errors. `warns`: of unmatched patterns."""
        if kept.files:
            if kept.files == 1:
                files = "1 file"
            else:
                files = f"{kept.files} files"

            self._log(
                f"kept {files} ({format_size(kept.bytes)}) of the working folder with the {place}"
            )

        for text in kept.left_out:
            self._log(f"not kept: {text}")

        if warns and kept.unmatched:
            self._warn(
                f"keep: {_program(self.job)} left nothing in its working folder that matches"
                f" {kept.unmatched[0]}"
            )

        return kept.errors

    def _warn(self, text: str) -> None:
        emit(Warned(message=text))
        self._log(f"warning: {text}")

    def conclude(self, code: int, seconds: float, *, killed: bool = False) -> int:
        """Emit the node's end; return the launcher's exit code. `code`: torchrun's."""
        outcome, error = self.outcome(code)
        if outcome == "succeeded" and self.ranks.trained_separately():
            self._warn(_TRAINED_SEPARATELY)
        was_stopped = outcome == "stopped"
        if was_stopped and self._trial_has_ended():
            outcome = "succeeded"
        end = NodeEnded(
            outcome=outcome, seconds=round(seconds, 3), error=brief_cause(error), forced=killed
        )
        if was_stopped and self.stop.reason:
            end = end.replace(why=self.stop.reason, stop_asked=self.stop.requested_at)
        emit(end)
        if error is not None:
            report_failure(error, self.context.failure_file)
        else:
            how = self.stop.reason if self.stop.reason in TRIAL_REASONS and was_stopped else outcome
            self._log(f"{how} after {seconds:.1f} s")
        if self.stop.reason in REQUESTED_REASONS:
            stopped = self.context.stopped_exit_code
        else:
            stopped = STOPPED
        return {"succeeded": SUCCEEDED, "stopped": stopped}.get(outcome, FAILED)

    def outcome(self, code: int) -> tuple[Outcome, Error | None]:
        """Return the node's outcome and failure cause. `code`: torchrun's, 1 after every stop.

        The result file of the first local rank therefore takes precedence.
        """
        result = _read_result(self.scratch / "result.json")
        if code or result == "stopped":  # the peers may have seen the stop earlier
            self.stop.recheck()
        cause = self.ranks.first_cause()
        if self.unsaved and self.stop.reason == "paused":  # the state to continue from is lost
            return "failed", self.unsaved
        if result is not None and (code == 0 or self.stop.reason):
            return result, None
        if code == 0:  # not after a SIGTERM to torchrun
            return "succeeded", None
        if self.stop.reason and (
            cause is None
            or cause.consequence
            or cause.time >= self.stop.requested_at
            or self.ranks.attempt < self.job.restarts  # torchrun would have restarted it
        ):
            return "stopped", None
        if cause is None:
            message = f"torchrun exited with code {code} and no rank gave a reason; see the log"
            cause = self.ranks.add_error(
                Error(rank=-1, time=time.time(), exception="exit", message=message)
            )
        return "failed", cause

    def _trial_has_ended(self) -> bool:
        """Return whether the end of a trial stopped this node's ranks, not a stop of the job.

        The first node decides. Its peers' ranks may stop with its own before their request arrives.
        """
        is_peer = bool(self.job.trial) and self.context.node_rank > 0
        return self.stop.reason in TRIAL_REASONS or (is_peer and not self.stop.reason)

    def _begin(self, activity: str) -> None:
        if activity != self._activity:
            self._activity = activity
            emit(Activity(activity=activity))

    def _log(self, text: str) -> None:
        log(self.context.node_rank, text)


def _program(job: Job) -> str:
    """Return the job's program as its user knows it."""
    return {"module": f"-m {job.target}", "trainer": "the trainer"}.get(job.kind, job.target)


def _read_result(path: Path) -> Outcome | None:
    """Return the first local rank's outcome; None if the file is missing or invalid."""
    try:
        outcome = json.loads(path.read_text())["outcome"]
    except (OSError, ValueError, KeyError):
        return None
    return next((result for result in _RESULTS if result == outcome), None)


def _fail_before_start(error: Exception) -> int:
    """Report a node without a valid context or job document as failed; return the exit code."""
    if not os.environ.get(NODE_RANK, "").isdecimal():
        os.environ[NODE_RANK] = "0"
    reported = mask_error(node_error(error).replace(node=int(os.environ[NODE_RANK]), attempt=0))
    emit(reported)
    emit(NodeEnded(outcome="failed", seconds=0.0, error=brief_cause(reported), forced=False))
    report_failure(reported, find_failure_file(os.environ))
    return FAILED
