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
            (
                r"Watchdog caught collective operation timeout|ran for \d+ milliseconds before"
                r" timing out"
            ),
            (
                r"[Ss]ome NCCL operations have failed or timed out|Heartbeat monitor timed"
                r" out|watchdog got stuck"
            ),
            r"Timed out waiting \d+ms for (recv|send) operation|failed to pass"
            r" monitoredBarrier|Wait timeout|"
            r"collective of NCCL has timed out|[Tt]imeout at NCCL work|take down the entire"
            r" process",
            (
                r"due to a collective timeout|Observed flight recorder dump signal|Timeout(Error)?:"
                r" .{0,60}barrier"
            ),
            r"monitoredBarrier",
        ),
        cause="a collective operation timed out: some rank did not come to it",
        remedy=_OTHERS,
        restart="after a change",
        source=_NCCL,
        is_consequence=True,
    ),
    Rule(
        name="peer-lost",
        patterns=(
            r"Connection (was likely )?(closed|reset|aborted) by (peer|remote)|ncclRemoteError|"
            r"communicator was aborted",
            (
                r"remote process exited or there was a network error|Socket Timeout|failed to recv,"
                r" got 0 bytes|recvValue"
            ),
            r"(gloo|c10d|NCCL|TCPStore|sendBytes|recvBytes).{0,200}([Bb]roken pipe|[Cc]onnection"
            r" (refused|reset|"
            r"closed))",
            r"connectFullMesh|Connection reset by peer|Broken"
            r" pipe|socketProgress|socketPollConnect|DistNetworkError|"
            r"RendezvousClosedError|store.{0,60}(closed|timeout)|Socket closed",
            r"has failed to (shutdown|send a keep-alive heartbeat to) the rendezvous",
            r"Call to (recv|send|connect|poll|accept)\b.{0,120}failed",
            r"Connection(Refused|Reset|Aborted)Error|BrokenPipeError",
            r"store->get\(|retrieving ncclUniqueId from",
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
            r"closing signal SIGTERM|got signal: 15|SIGTERM\b|[Ss]ignal 15\b|exitcode {0,3}:"
            r" ?-15\b|"
            r"Received 15 death signal",
            (
                r"killed by signal: Terminated|Terminating (remaining )?process|sending"
                r" SIGTERM|^KeyboardInterrupt$"
            ),
            r"\*\*\* (JOB|STEP) \S{1,60} ON .{1,80} CANCELLED AT \S{1,40} \*\*\*",
            r"exitcode {0,3}: ?-2\b|SIGINT\b|[Ee]xit ?[Cc]ode:? 143\b",
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
            r"ChildFailedError|ProcessRaisedException|ProcessExitedException|CalledProcessError|"
            r"exits? with return code",
            r"exitcode {0,3}: ?[1-9]\d*\b|no rank gave a reason|Primary job +terminated normally|"
            r"non-zero (exit )?status",
            r"RayTaskError|launcher has (exited|ended)|exited with code [1-9]\d*\b|AlgorithmError",
            r"A worker died or was killed while executing a task|exited with status code"
            r" [1-9]|CrashLoopBackOff|"
            r"MPI_ABORT was invoked",
            r"[Ee]xit ?[Cc]ode:? [1-9]\d*\b|Failed to run \[",
            r"(Ray)?ActorDiedError|RayActorError|WorkerCrashedError|The actor (died|is dead) |"
            r"Worker exit type: (SYSTEM|USER)_ERROR",
            r"worker\.status\.FAILED|TrainingFailedError|JobState=FAILED",
        ),
        cause="a launcher says that one of its processes failed",
        remedy=(
            "look at the first traceback of that process; @record on the script's main function"
            " puts it into torchrun's summary"
        ),
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/elastic/errors.html",
        is_consequence=True,
    ),
)
