"""Failures of communication, and consequences of a failure in another process."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_DDP = (
    "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"
)
_RENDEZVOUS = "https://docs.pytorch.org/docs/stable/elastic/rendezvous.html"

COMMUNICATION = (
    Rule(
        name="world-split",
        patterns=(r"the world has \d+ ranks|without having joined one torch\.distributed group",),
        cause="the ranks did not become one group: each node trained for itself",
        remedy="start the processes through the launcher, not with your own torchrun",
        source="docs/guides/several-nodes.md",
    ),
    Rule(
        name="network-interface",
        patterns=(
            r"no socket interface found|No interface found",
            r"[Uu]nable to find (interface|address) for|unsupported gloo device",
            r"makeDeviceFor(Hostname|Interface)|Connect to 169\.254\.",
        ),
        cause="the network interface between the nodes was not found",
        remedy=(
            "name the one that exists (ip addr) in env: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME;"
            " the launcher sets both where they are not named"
        ),
        source=(
            "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname"
        ),
    ),
    Rule(
        name="fabric-error",
        patterns=(
            r"ibv_(reg_mr|create_cq|create_qp).{0,120}Cannot allocate memory",
            r"NET/IB ?: ?Got completion .{0,80}error",
            r"Got completion from peer .{0,120}(status|error)",
            r"ibv_(modify_qp|create_qp|poll_cq|post_send).{0,60}(failed|error)",
            r"NET/IB.{0,80}[Ff]atal|mlx5: .{0,80}got completion with error",
            r"NET/OFI.{0,200}[Rr]equest .{0,60}completed with error",
        ),
        cause="the fast network between the nodes (InfiniBand, EFA) failed",
        remedy=(
            "start again, on other machines if it comes back; NCCL_IB_DISABLE=1 in env shows"
            " whether sockets work"
        ),
        remedies=(
            (
                r"Cannot allocate memory",
                "InfiniBand could not lock memory: lift that limit, ulimit -l unlimited (docker run"
                " --ulimit memlock=-1)",
            ),
        ),
        restart="retry",
        source=_NCCL,
    ),
    Rule(
        name="duplicate-gpu",
        patterns=(r"Duplicate GPU detected",),
        cause="several ranks use the same GPU",
        remedy=(
            "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the group is made,"
            " and start no more processes than GPUs"
        ),
        source="https://docs.pytorch.org/docs/stable/distributed.html",
    ),
    Rule(
        name="collectives-differ",
        patterns=(
            r"params\[\d+\] in (this process|rank).{0,120}(appears not to match|sizes)",
            r"DDP expects same model across all ranks",
            r"Detected mismatch between collectives on ranks",
            r"Mismatch between collective operation types|DistributedOperationException",
            r"All shapes across devices must be valid|Message truncated",
            r"Forward order differs across ranks|message truncated : received",
        ),
        cause="the ranks called different collectives, or have different shapes or models",
        remedy=(
            "look for a branch that only some ranks take (if rank == 0, an uneven number of"
            " batches) around that call"
        ),
        remedies=(
            (
                r"params\[|same model",
                "build the model from the same arguments on every rank; sizes must not come from a"
                " rank's own share of the data",
            ),
        ),
        source="https://docs.pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applications",
    ),
    Rule(
        name="unused-parameters",
        patterns=(
            r"Expected to have finished reduction in the prior iteration",
            r"parameters that were not used in producing the loss",
        ),
        cause=(
            "some parameters of the model took no part in the loss, which DDP does not allow by"
            " itself"
        ),
        remedy=(
            "remove parameters that are not used, or pass find_unused_parameters=True to"
            " DistributedDataParallel"
        ),
        source=_DDP,
    ),
    Rule(
        name="port-in-use",
        patterns=(r"Address already in use|EADDRINUSE|port is already allocated",),
        cause="a port, such as that of the ranks' rendezvous, was taken",
        remedy=(
            "if the program sets the port (MASTER_PORT, tcp://), a rerun fails again: leave it to"
            " the launcher; else it was taken in that moment: cloudtrain rerun RUN tries another"
        ),
        remedies=(
            (
                r"OSError: \[Errno 98\]",
                "the program itself binds it: let the system choose a free port (0), or give each"
                " rank one of its own; a rerun with the same port may fail again",
            ),
        ),
        source=_RENDEZVOUS,
    ),
    Rule(
        name="name-not-resolved",
        patterns=(
            r"Temporary failure in name resolution|Name or service not known",
            r"No address associated with hostname|gai error: -\d|getaddrinfo failed",
            r"nodename nor servname provided",
        ),
        unless=r"https?://|with url|HTTPS?Connection",
        cause="a host's name could not be resolved",
        remedy=(
            "check the name and the job's network (DNS, a network without Internet); on a cluster"
            " the nodes must see each other's names"
        ),
        restart="retry",
        source=_RENDEZVOUS,
    ),
    Rule(
        name="peers-did-not-meet",
        patterns=(
            r"RendezvousTimeoutError|waiting for clients\. \d+/\d+ clients joined",
            r"RendezvousConnectionError",
            r"client socket has (timed out|failed).{0,80}(connect|server)",
            r"The connection to the C10d store has failed|connect\(\) timed out",
            r"waiting for peers timed out|peers? (never|did not) (came|come|answer)",
            r"No route to host|Connect to \S{1,80} failed|errno: 110 - ",
        ),
        cause=(
            "the ranks did not meet in time: a node did not start, or its network does not let them"
            " through"
        ),
        remedy=(
            "look at the log of the node that is missing; nodes need all ports open among each"
            " other (security group), and the same address of the first node"
        ),
        unless=r"has failed to (shutdown|send a keep-alive)",
        restart="retry",
        source=_RENDEZVOUS,
        is_symptom=True,
    ),
    Rule(
        name="group-not-made",
        patterns=(
            r"[Dd]efault process group has not been initialized",
            r"using env:// rendezvous.{0,120}expected, but not set",
            (
                r"KeyError: '(LOCAL_RANK|RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|SLURM_PROCID|OM"
                r"PI_COMM_WORLD_\w+)'"
            ),
        ),
        cause="the script uses torch.distributed without a process group",
        remedy=(
            "call torch.distributed.init_process_group() first, and start the script through the"
            " launcher or torchrun, which set RANK, LOCAL_RANK and WORLD_SIZE"
        ),
        source="https://docs.pytorch.org/docs/stable/distributed.html#initialization",
    ),
    Rule(
        name="device-ids",
        patterns=(
            r"device_ids can only be None or contain a single element|device_ids and output_device",
        ),
        cause="DistributedDataParallel got several devices, or devices for a model on the CPU",
        remedy=(
            "pass device_ids=[local_rank], the one GPU of the rank; leave it out for a model on the"
            " CPU"
        ),
        source=_DDP,
    ),
    Rule(
        name="group-misused",
        patterns=(
            r"initialize the default process group twice|Invalid rank \d+, rank should be in",
            r"No backend type associated with device type",
            r"Tensors must be (CUDA and dense|contiguous)|package doesn't have NCCL",
            r"(Unknown|Invalid) (c10d )?backend|package doesn't have (MPI|GLOO|UCC) built in",
        ),
        cause="wrong backend, rank or device for this process group",
        remedy=(
            "make the group once per process; nccl moves tensors of GPUs, gloo of CPUs"
            " (cpu:gloo,cuda:nccl both)"
        ),
        remedies=(
            (
                r"built in",
                "this torch is built without it: use gloo on CPUs, init_process_group('gloo'); nccl"
                " needs a torch for CUDA, and mpi a torch that is built from source",
            ),
        ),
        source="https://docs.pytorch.org/docs/stable/distributed.html#backends",
    ),
    Rule(
        name="nccl-misused",
        patterns=(
            r"ncclInvalid(Usage|Argument)",
            r"invalid (usage|argument),? ?(\([^)]{0,60}\),? ?)?NCCL version",
        ),
        cause="NCCL was called in a way that it does not take: most often two ranks use one GPU",
        remedy=(
            "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the group is made,"
            " and start no more processes than GPUs; NCCL_DEBUG=WARN in env says what it refused"
        ),
        source=_NCCL,
        is_symptom=True,
    ),
    Rule(
        name="nccl-gpu-call-failed",
        patterns=(r"ncclUnhandledCudaError|unhandled cuda error|NCCL WARN Cuda failure",),
        cause="a CUDA call inside NCCL failed",
        remedy=(
            "NCCL_DEBUG=WARN in env names the call; out of memory, a GPU used by two ranks and a"
            " driver that is too old are usual"
        ),
        source=_NCCL,
        is_symptom=True,
    ),
    Rule(
        name="nccl-system-error",
        patterns=(
            r"ncclSystemError|unhandled system error|ncclSuccess\. 2 vs 0",
            r"NCCL WARN Could not find real path",
        ),
        cause="a system call inside NCCL failed: a network, shared memory or a device",
        remedy="NCCL_DEBUG=WARN in env names the call",
        source=_NCCL,
        is_symptom=True,
    ),
    Rule(
        name="nccl-internal-error",
        patterns=(r"ncclInternalError|ProcessGroupNCCL\.cpp:\d+, internal error - ",),
        cause="a check inside NCCL failed",
        remedy=(
            "NCCL_DEBUG=WARN in env names it; a network interface that does not reach the others, a"
            " proxy, and mixed versions of NCCL are usual"
        ),
        source=_NCCL,
        is_symptom=True,
    ),
    Rule(
        name="mpi-not-started",
        patterns=(r"occurred in MPI_Init|not built with SLURM's PMI|PMI_?x?_Init.{0,80}failed",),
        suggests=(r"\bMPI_Init(_thread)?\b",),
        cause="MPI could not start: its library and what started the ranks do not go together",
        remedy=(
            "start the ranks by the mpirun of the MPI that mpi4py is built for (Slurm: srun"
            " --mpi=pmix), or without MPI: launcher: torchrun"
        ),
        source="https://docs.open-mpi.org/en/main/launching-apps/slurm.html",
    ),
    Rule(
        name="node-not-reached",
        patterns=(
            r"ssh: (connect to host|Could not resolve)|Permission denied \(publickey",
            r"Host key verification failed",
            r"(during banner exchange|kex_exchange_identification: )",
        ),
        cause="a node could not be reached over SSH, which the program uses to start processes",
        remedy=(
            "start one launcher on each node (torchrun) instead, or let the nodes log in to each"
            " other without a password"
        ),
        source="https://www.deepspeed.ai/getting-started/#launching-deepspeed-training",
    ),
)


_OTHERS = (
    "look at the other ranks and nodes before this moment: the first that failed or fell behind is"
    " the cause"
)
_NCCL_TIMEOUTS = "https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html"


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
        source=_NCCL_TIMEOUTS,
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
            r"worker\.status\.FAILED|TrainingFailedError|JobState=FAILED|Root Cause \(first observed",
            r"Program failed with code [1-9]|Trial task failed for trial",
            r"Unhandled error \(suppress with 'RAY_|^\s*raise failure$",
        ),
        cause="a launcher says that one of its processes failed",
        remedy=(
            "look at the first traceback of that process; @record on the script's main function"
            " puts it into torchrun's summary"
        ),
        remedies=(
            (
                r"exit ?code\s{0,3}: ?2\b",
                "exit code 2 is that of refused arguments, and of a script that is not there: look"
                " at the usage or the path that is printed above",
            ),
            (
                r"\bpip\d?\b.{0,40}install",
                "look at pip's own lines above: the requirement that it names could not be"
                " installed",
            ),
            (
                r"Actor|\b[Rr]ay\b|Raylet",
                "look at the log of that worker: its own traceback above, or its file in"
                " /tmp/ray/session_latest/logs on its node (dmesg: killed for memory?)",
            ),
        ),
        source="https://docs.pytorch.org/docs/stable/elastic/errors.html",
        is_consequence=True,
    ),
)
