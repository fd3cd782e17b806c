"""Rules of consequences of another process that failed or is late, never root causes."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

_OTHERS = (
    "look at the other ranks and nodes before this moment: the first that failed or fell behind is"
    " the cause"
)
_NCCL = "https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html"

CONSEQUENCES = (
    Rule(
        name="collective-timeout",
        patterns=(
            r"Watchdog caught collective operation timeout",
            r"ran for \d+ milliseconds before timing out",
            r"[Ss]ome NCCL operations have failed or timed out|Heartbeat monitor timed out",
            r"watchdog got stuck|Timed out waiting \d+ms for (recv|send) operation",
            r"failed to pass monitoredBarrier|Wait timeout|collective of NCCL has timed out",
            r"[Tt]imeout at NCCL work|take down the entire process|due to a collective timeout",
            r"Observed flight recorder dump signal|Timeout(Error)?: .{0,60}barrier",
            r"monitoredBarrier",
        ),
        cause="a collective operation timed out: some rank did not come to it",
        remedy=_OTHERS,
        source=_NCCL,
        is_consequence=True,
    ),
    Rule(
        name="peer-lost",
        patterns=(
            r"Connection (was likely )?(closed|reset|aborted) by (peer|remote)|ncclRemoteError",
            r"communicator was aborted|remote process exited or there was a network error",
            r"Socket Timeout|failed to recv, got 0 bytes|recvValue",
            (
                r"(gloo|c10d|NCCL|TCPStore|sendBytes|recvBytes).{0,200}([Bb]roken pipe|[Cc]onnec"
                r"tion (refused|reset|closed))"
            ),
            r"connectFullMesh|Connection reset by peer|Broken pipe|socketProgress",
            r"socketPollConnect|DistNetworkError|RendezvousClosedError",
            r"store.{0,60}(closed|timeout)|Socket closed",
            r"has failed to (shutdown|send a keep-alive heartbeat to) the rendezvous",
            r"Call to (recv|send|connect|poll|accept)\b.{0,120}failed",
            r"Connection(Refused|Reset|Aborted)Error|BrokenPipeError|store->get\(",
            r"retrieving ncclUniqueId from|register worker .{0,120}[Rr]aylet",
        ),
        cause="another process was gone",
        remedy=_OTHERS,
        restart="retry",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
        is_consequence=True,
    ),
    Rule(
        name="terminated",
        patterns=(
            r"SIGTERM\b|SIGINT\b|Received 15 death signal|killed by signal: Terminated",
            r"Terminating (remaining )?process|^KeyboardInterrupt$",
            r"\*\*\* (JOB|STEP) \S{1,60} ON .{1,80} CANCELLED AT \S{1,40} \*\*\*",
        ),
        cause=(
            "a process was told to end (SIGTERM, Ctrl-C), as the others are when one fails, and as"
            " a platform does at a stop"
        ),
        remedy=(
            "look at what failed before it, and at whether somebody or the platform stopped the job"
        ),
        restart="retry",
        source="https://docs.pytorch.org/docs/stable/elastic/errors.html",
        is_consequence=True,
    ),
    Rule(
        name="launcher-summary",
        patterns=(
            r"ChildFailedError|ProcessRaisedException|ProcessExitedException|CalledProcessError",
            r"exits? with return code|exitcode {0,3}: ?[1-9]\d*\b|no rank gave a reason",
            r"Primary job +terminated normally|non-zero (exit )?status|RayTaskError",
            r"launcher has (exited|ended)|exited with code [1-9]\d*\b|AlgorithmError",
            r"A worker died or was killed while executing a task|exited with status code [1-9]",
            r"CrashLoopBackOff|MPI_ABORT was invoked|[Ee]xit ?[Cc]ode:? [1-9]\d*\b",
            r"Failed to run \[|(Ray)?ActorDiedError|RayActorError|WorkerCrashedError",
            r"The actor (died|is dead) |Worker exit type: (SYSTEM|USER)_ERROR",
            r"worker\.status\.FAILED|TrainingFailedError|JobState=FAILED",
        ),
        cause="a launcher says that one of its processes failed",
        remedy=(
            "look at the first traceback of that process; @record on the script's main function"
            " puts it into torchrun's summary"
        ),
        source="https://docs.pytorch.org/docs/stable/elastic/errors.html",
        is_consequence=True,
    ),
)
