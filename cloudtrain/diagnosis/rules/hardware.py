"""Failures of GPUs, drivers, memory and disks."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

_XID = "https://docs.nvidia.com/deploy/xid-errors/index.html"
_ANOTHER = (
    "start again on another machine; if it comes back on the same one, report that machine to the"
    " cloud"
)


HARDWARE = (
    Rule(
        name="gpu-lost",
        patterns=(
            r"Xid.{0,60}[:,] ?(61|62|79|119|120|140)\b|fallen off the bus|GPU is lost",
            r"Timeout .{0,40}waiting for RPC from GSP",
            r"Unable to determine the device handle for GPU|NVML_ERROR_GPU_IS_LOST",
        ),
        cause="a GPU has fallen off the bus, or its firmware stopped answering: hardware failed",
        remedy=_ANOTHER,
        restart="retry",
        source=_XID,
    ),
    Rule(
        name="gpu-memory-error",
        patterns=(
            r"Xid.{0,60}[:,] ?(48|63|64|92|94|95)\b|[Uu]ncorrectable (ECC |double[ -]bit )",
            r"uncorrectable ECC|cudaErrorECCUncorrectable|[Dd]ouble [Bb]it (ECC )?[Ee]rror|DBE",
        ),
        cause="a GPU's memory has an error that ECC cannot correct",
        remedy=_ANOTHER,
        restart="retry",
        source=_XID,
    ),
    Rule(
        name="nvlink-error",
        patterns=(
            r"Xid.{0,60}[:,] ?(74|137|14[4-9]|150)\b|previous Xid (74|14[4-9]|150)",
            r"[Uu]ncorrectable NVLink|cudaErrorNvlinkUncorrectable|peer GPU memory over nvlink",
        ),
        cause="a link between GPUs (NVLink) failed",
        remedy=_ANOTHER,
        restart="retry",
        source=_XID,
    ),
    Rule(
        name="xid",
        patterns=(r"NVRM: Xid",),
        unless=r"Xid.{0,60}[:,] ?45\b",
        cause="the driver reported an error of a GPU (Xid)",
        remedy=(
            "look the number up in NVIDIA's list of Xid errors: some are the program's (13, 31,"
            " 43), others the machine's"
        ),
        restart="retry",
        source=_XID,
        is_symptom=True,
    ),
    Rule(
        name="device-side-assert",
        patterns=(
            r"device-side assert|cudaErrorAssert",
            r"block: \[\d+, ?\d+, ?\d+\], thread: \[\d+, ?\d+, ?\d+\] Assertion",
        ),
        unless=r"TORCH_USE_CUDA_DSA|to enable device-side",
        cause="a kernel's own check failed: most often a label or an index outside its range",
        remedy=(
            "run the same batch on the CPU, which names the index; compare labels with the number"
            " of classes, and tokens with the size of the vocabulary"
        ),
        source="https://github.com/pytorch/pytorch/issues/75534",
    ),
    Rule(
        name="fabric-manager",
        patterns=(
            r"system not yet initialized|cudaErrorSystemNotReady|Error 802",
            r"fabric[ -]?manager .{0,40}not running",
        ),
        cause="CUDA was not ready on this machine: its fabric manager does not run",
        remedy=(
            "start nvidia-fabricmanager on the machine, in the version of its driver, or take"
            " another machine"
        ),
        restart="retry",
        source="https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
    ),
    Rule(
        name="driver-mismatch",
        patterns=(
            r"[Dd]river/library version mismatch|API mismatch: the client has the version",
            r"unsupported display driver( / cuda driver)? combination|Error 803:",
        ),
        cause="the NVIDIA driver was updated while its old kernel module is still loaded",
        remedy="restart the machine, or start the job on another one",
        source="https://docs.nvidia.com/deploy/nvml-api/index.html",
    ),
    Rule(
        name="driver-too-old",
        patterns=(
            r"NVIDIA driver on your system is too old|CUDA driver version is insufficient",
            r"forward compatibility was attempted on non supported HW",
            r"unsatisfied condition: cuda",
        ),
        cause="the NVIDIA driver is too old for the CUDA that torch was built with",
        remedy="take an image with a torch for an older CUDA, or a machine with a newer driver",
        source="https://docs.nvidia.com/deploy/cuda-compatibility/",
    ),
    Rule(
        name="gpus-missing",
        patterns=(
            r"shows \d+ GPUs|invalid device ordinal|Invalid device id|You requested gpu: \[",
            r"Invalid CUDA '?device",
            r"available (GPUs?|nodes) .{0,20}(is|are) (less|fewer|smaller) than .{0,30}\d",
            r"device < num_gpus INTERNAL ASSERT",
        ),
        cause="fewer GPUs are visible than the processes need",
        remedy=(
            "ask for fewer GPUs (processes, nodes times GPUs of each), or for more machines; check"
            " that all nodes have joined, and that your own image sees the driver"
        ),
        source="docs/guides/several-nodes.md",
    ),
    Rule(
        name="no-gpu",
        patterns=(
            r"No CUDA GPUs are available|no CUDA-capable device is detected",
            r"Found no NVIDIA driver",
            r"nvidia-container-cli: initialization error(?!.*(mismatch|unsupported display))",
            r"could not select device driver .{0,20}with capabilities",
            r"libcuda\.so\.1: cannot open|Torch not compiled with CUDA enabled",
            r"No HIP GPUs are available|no ROCm-capable device is detected",
            r"couldn't communicate with the NVIDIA driver|cannot give GPUs to containers",
            r"torch\.cuda\.is_available\(\) is False",
            r"([Uu]nknown|invalid) runtime (name|specified):? ?\"?nvidia",
            r"ProcessGroupNCCL is only supported with GPUs|No supported gpu backend found",
            r"libnvidia-ml\.so\S* (not found|cannot)|NVML Shared Library Not Found",
        ),
        suggests=(
            r"can only be used on CUDA|CUDA (is|was) not available",
            r"requires? (a )?(CUDA|GPU) (device|support|to)|No GPUs? (found|detected)\b",
            r"Unexpected error from cudaGetDeviceCount|Failed to initialize NVML",
            r"CUDA driver initialization failed",
        ),
        cause="the program needs a GPU, and no GPU is visible",
        remedy=(
            "take a machine that has GPUs, and ask for them (resources.gpus; 0 where there is"
            " none); take an image with a torch for them; CUDA_VISIBLE_DEVICES must not be empty"
        ),
        remedies=(
            (
                r"libcuda|libnvidia|NVIDIA driver|NVML|container-cli|cannot give GPUs",
                "NVIDIA's driver brings it, no package does: take a machine with a GPU, or its"
                " driver and container toolkit on this one; on a machine without a GPU set"
                " resources.gpus: 0",
            ),
            (
                r"HIP|ROCm",
                "take a machine with AMD GPUs, and give the container /dev/kfd and /dev/dri; take"
                " an image with a torch for ROCm; HIP_VISIBLE_DEVICES must not be empty",
            ),
        ),
        source="https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html",
    ),
    Rule(
        name="gpu-too-old",
        patterns=(
            r"only supports? Ampere GPUs",
            r"[Bb](float16|f16|F16).{0,80}(not supported|requires|only supported)",
            r"[Ss]etup doesn't support bf16|[Rr]equires? (GPU|device)s? with compute capability",
        ),
        unless=r"not implemented for '",
        cause="the GPU lacks what the program asks for, such as bf16 or flash attention",
        remedy="take fp16 or fp32 and attn_implementation='sdpa', or a machine with a newer GPU",
        source="https://developer.nvidia.com/cuda-gpus",
    ),
    Rule(
        name="gpu-peer-access",
        patterns=(
            r"peer access is not supported|peer mapping resources exhausted",
            r"failed to open CUDA IPC handle",
            r"doesn't support faster communication broadband via P2P",
        ),
        cause="these GPUs cannot reach each other's memory",
        remedy="NCCL_P2P_DISABLE=1 in env, and NCCL_IB_DISABLE=1 on GPUs of the RTX 4000 series",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    ),
    Rule(
        name="node-failed",
        patterns=(
            r"DUE TO NODE FAILURE|NODE_FAIL\b",
            r"[Nn]ode .{0,60}(is|became) (NotReady|unhealthy|down)\b",
            r"^\W*([Rr]eason:? +)?Evicted\b",
        ),
        cause="a machine failed, was taken out of the cluster, or evicted its pod",
        remedy=_ANOTHER,
        remedies=(
            (
                r"Evicted",
                "kubectl describe pod names what its node was short of: request it (memory,"
                " ephemeral-storage), and start again",
            ),
        ),
        restart="retry",
        source="https://slurm.schedmd.com/squeue.html",
    ),
    Rule(
        name="gpu-busy",
        patterns=(r"all CUDA-capable devices are busy or unavailable|cudaErrorDevicesUnavailable",),
        cause="the GPU is taken: another process has it alone, or it waits for a reset",
        remedy="end the other process (nvidia-smi shows it), or take another machine",
        restart="retry",
        source="https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
    ),
    Rule(
        name="amd-gpu-call-failed",
        patterns=(
            r"HIP error: \w|\bhipError[A-Z]\w+|HSA_STATUS_ERROR|\bMIOpen Error",
            r"miopenStatus[A-Z]\w+|rocblas_status_\w+",
            r"Memory access fault by GPU node",
        ),
        unless=r"NCCL",
        cause="an operation on an AMD GPU failed",
        remedy=(
            "AMD_SERIALIZE_KERNEL=3 in env names the operation; a torch built for another ROCm or"
            " another GPU is usual, and full memory; dmesg (amdgpu) has errors of the GPU itself"
        ),
        restart="retry",
        source="https://rocm.docs.amd.com/projects/HIP/en/latest/how-to/debugging.html",
        is_symptom=True,
    ),
    Rule(
        name="illegal-gpu-access",
        patterns=(
            r"an illegal memory access was encountered|cudaErrorIllegalAddress",
            r"misaligned address",
        ),
        cause="a kernel on the GPU read or wrote memory that is not its own",
        remedy=(
            "run with CUDA_LAUNCH_BLOCKING=1 in env, which names the operation; custom kernels and"
            " indices are the first suspects"
        ),
        source="https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
        is_symptom=True,
    ),
    Rule(
        name="gpu-launch-failure",
        patterns=(
            r"unspecified launch failure|CUDA error: unknown error|cudaErrorUnknown",
            r"CUDNN_STATUS_EXECUTION_FAILED|an illegal instruction was encountered",
            r"cudaErrorIllegalInstruction|hardware exception|unable to execute kernel",
        ),
        cause="an operation on the GPU failed: its kernel, its driver or the GPU itself",
        remedy=(
            "start again on another machine, and look for an Xid of that time in the log of this"
            " one (dmesg); if it comes back, CUDA_LAUNCH_BLOCKING=1 in env names the operation"
        ),
        restart="retry",
        source=_XID,
        is_symptom=True,
    ),
    Rule(
        name="gpu-call-failed",
        patterns=(
            r"CUDA error: \w|(cuda|CUDA) runtime error|THCudaCheck FAIL|cudaError[A-Z]\w+",
            r"CUDA driver error|(CUBLAS|CUDNN|CUSPARSE|CUSOLVER|CUFFT|NVRTC)_STATUS_\w+",
            r"cublas runtime error|CUFFT_[A-Z]\w+",
        ),
        unless=r"NCCL|NO_DEVICE",
        cause="a call of CUDA or of one of its libraries failed",
        remedy=(
            "CUDA_LAUNCH_BLOCKING=1 in env names the operation; usual are shapes or a batch that"
            " the kernel does not take, full memory, packages of another CUDA, and a torch that is"
            " older than this GPU"
        ),
        source="https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
        is_symptom=True,
    ),
)


_ERRNO = "https://man7.org/linux/man-pages/man3/errno.3.html"
_FREE = "free some disk space, write elsewhere, or ask the cloud for more: resources.disk"
_FULL = ": (?:No space left|Disk quota)"
_DID_NOT_FIT = f"{{place}} did not fit on its disk: {_FREE}"

STORAGE = (
    Rule(
        name="disk-full",
        patterns=(
            r"No space left|ENOSPC|([Nn]ot enough|[Ii]nsufficient) (free |local )?(disk )?space",
            r"disk is full|StorageFull|low on resource: ephemeral-storage",
            r"exceeds? .{0,60}ephemeral|DiskPressure|\d+ requested and \d+ written",
            r"Disk quota exceeded|EDQUOT",
        ),
        unless=r"/torch_\d|/dev/shm|shared memory|NCCL WARN",
        cause="a disk, or your share of it, was full",
        remedy=_FREE,
        remedies=(
            (r"No space left on device: '(?P<place>[^']+)'", _DID_NOT_FIT),
            (rf"(?:^|\s)(?P<place>/(?:(?! /)[^:'\n])*/[^\s:'/]+){_FULL}", _DID_NOT_FIT),
            (rf"(?<![^\s:'])(?P<place>[^\s:'/]*/[^\s:']*){_FULL}", _DID_NOT_FIT),
        ),
        source=_ERRNO,
    ),
    Rule(
        name="stale-file-handle",
        patterns=(
            r"Stale (NFS )?file handle|ESTALE|Transport endpoint is not connected",
            r"Device or resource busy: .{0,200}\.nfs",
        ),
        cause="a network disk went away while it was in use",
        remedy=(
            "start again; if it comes back, look at the file server, or copy the data to the"
            " machine first"
        ),
        restart="retry",
        source=_ERRNO,
    ),
    Rule(
        name="disk-error",
        patterns=(r"Input/output error|\[Errno 5\]|Remote I/O error",),
        unless=r"NCCL|tcgetattr|stdin",
        cause="a disk or a network file system failed to read or write",
        remedy=(
            "start again on another machine; if it comes back, look at the disk (dmesg) or the file"
            " server"
        ),
        restart="retry",
        source=_ERRNO,
    ),
    Rule(
        name="permission-denied",
        patterns=(
            r"Read-only file system|EROFS",
            r"PermissionError|Permission denied|\[Errno 13\]|EACCES|Operation not permitted",
            r"kind: PermissionDenied",
        ),
        unless=r"[Pp]ublickey|ptrace|perf_event|set_mempolicy|numa|wandb|W&B|upsertBucket",
        cause="the process may not read, write or run a file",
        remedy=(
            "write to the job's own folders (CLOUDTRAIN_OUTPUT_DIR and the like), and see which"
            " user the container runs as and who owns the file"
        ),
        remedies=(
            (
                r"Read-only|EROFS",
                "write to CLOUDTRAIN_OUTPUT_DIR, CLOUDTRAIN_MODEL_DIR or CLOUDTRAIN_CHECKPOINT_DIR:"
                " inputs are mounted for reading only",
            ),
        ),
        source="docs/concepts/contract.md",
    ),
    Rule(
        name="file-not-found",
        patterns=(
            r"FileNotFoundError|No such file|can't open file '|NotADirectoryError",
            r"is not a directory: |Dataset .{0,80}not found|missing paths ?\[",
            r"Could not open requirements file",
        ),
        unless=r"lib\w[\w.+-]*\.so|fatal error: |shared library|\bld(\.\w+)?: ",
        cause="a file or folder that the program opens is not there",
        remedy=(
            "correct the path that the message names; of a job only files inside the source folder"
            " are in the archive, and data is an input (CLOUDTRAIN_INPUT_<NAME>)"
        ),
        source="docs/guides/data.md",
    ),
    Rule(
        name="file-exists",
        patterns=(r"FileExistsError|\[Errno 17\]",),
        cause="a file or folder that the program makes is there already",
        remedy=(
            "where ranks make the same one at the same time: os.makedirs(…, exist_ok=True), or only"
            " on rank 0; else it is of an earlier run"
        ),
        source=_ERRNO,
    ),
    Rule(
        name="file-locked",
        patterns=(
            r"unable to lock file|database is locked|Timeout: .{0,200}\.lock",
            r"could not be acquired",
        ),
        cause="a file is locked by another process",
        remedy=(
            "let each rank open another file, or read only; HDF5_USE_FILE_LOCKING=FALSE in env"
            " for HDF5 on a network disk; remove a lock that a killed process left"
        ),
        source="https://docs.h5py.org/en/stable/high/file.html",
    ),
)
