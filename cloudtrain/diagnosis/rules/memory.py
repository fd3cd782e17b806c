"""Rules of memory: of the host, a container, a GPU, and shared memory; direct or in disguise."""

from __future__ import annotations

import re

from cloudtrain.diagnosis.rule import Rule

_CUDA_NOTES = "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management"
_SMALLER = (
    "make the batch smaller (with gradient accumulation the result stays the same) or take a GPU"
    " with more memory"
)


def _gpu_memory(message: str) -> str:
    """Return a remedy; if other processes fill the GPU, a smaller batch does not help."""
    processes = re.search(r"Process \d+ has ([\d.]+) GiB memory in use", message)
    if processes and float(processes[1]) >= 1:
        return (
            f"another process holds {processes[1]} GiB of this GPU: end it, or give each rank a GPU of"
            f" its own; {_LAST}"
        )
    return _SMALLER


_LAST = "if it belongs to the same job, make the batch smaller"

MEMORY = (
    Rule(
        name="container-memory-limit",
        patterns=(
            r"its container reached the limit",
            (
                r"Memory cgroup out of"
                r" memory|CONSTRAINT_MEMCG|\"?\bOOMKilled\b(?!\"?\s*[:=]\s*\"?(false|no))"
            ),
        ),
        cause=(
            "the container reached its limit of host memory, and the kernel killed a process in it"
        ),
        remedy=(
            "raise docker.memory (CLOUDTRAIN_DOCKER_MEMORY), use fewer DataLoader workers, or make"
            " the batch smaller"
        ),
        restart="after a change",
        source="https://docs.docker.com/engine/containers/resource_constraints/",
    ),
    Rule(
        name="host-out-of-memory",
        patterns=(
            (
                r"Out of memory: Kill(ed)? process|CONSTRAINT_NONE|oom_reaper: reaped"
                r" process|invoked oom-killer"
            ),
            (
                r"[Dd]etected \d+ oom[-_]kill event|oom-kill event|task .{0,60} was killed"
                r" .{0,20}OOM|OutOfMemoryHandler"
            ),
            r"killed due to the node running low on memory|node was low on resource: memory",
            r"[Ee]xceeded (job|step) memory limit|use an instance (type )?with more memory",
            r"killed by SIGKILL: out of host memory",
            r"task \d+: Out Of Memory",
            r"(JobState|State)=OUT_OF_ME",
        ),
        cause="the machine ran out of host memory, and a process was killed for it",
        remedy=(
            "use fewer DataLoader workers, load less into memory at once, or take a machine with"
            " more memory"
        ),
        restart="after a change",
        source="https://docs.kernel.org/admin-guide/mm/concepts.html#oom-killer",
    ),
    Rule(
        name="shared-memory",
        patterns=(
            (
                r"[Bb]us error|SIGBUS|unable to (open|allocate|mmap|write).{0,80}(shared"
                r" memory|/torch_)"
            ),
            r"/torch_\d+.{0,200}No space left|insufficient shared memory|out of shared memory",
            r"/shm/nccl-|creating shared memory segment|posix_fallocate failed",
            r"exitcode {0,3}: ?-7\b|[Ee]xit ?[Cc]ode:? 135\b",
        ),
        cause="shared memory (/dev/shm) was too small",
        remedy=(
            "shared memory is too small for the batches of the DataLoader workers: raise"
            " resources.shm (docker, azure), or use fewer workers or a smaller prefetch_factor;"
            " SageMaker sizes it by the machine"
        ),
        restart="after a change",
        source="https://github.com/pytorch/pytorch#docker-image",
    ),
    Rule(
        name="host-allocation-failed",
        patterns=(
            (
                r"DefaultCPUAllocator: (can't|not enough)|[Cc]an't allocate memory|Cannot allocate"
                r" memory"
            ),
            (
                r"^MemoryError\b|[:\]] MemoryError\b|_ArrayMemoryError|std::bad_alloc|Unable to"
                r" allocate [\d.]+ [KMGT]iB"
            ),
            r"paging file is too small|Insufficient system resources|Not enough memory resources",
        ),
        unless=r"ibv_|NCCL WARN",
        cause="the program asked for more host memory than it could get",
        remedy=(
            "load less into host memory at once (memory-mapped or streamed data, fewer workers, a"
            " smaller batch), or take a machine with more memory"
        ),
        restart="after a change",
        source="https://github.com/pytorch/pytorch/blob/main/c10/core/impl/alloc_cpu.cpp",
    ),
    Rule(
        name="gpu-out-of-memory",
        patterns=(
            r"(CUDA|HIP|XPU|MPS backend) (error: )?out of memory|torch\.(cuda\.)?OutOfMemoryError",
            (
                r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|OOM when allocating"
                r" tensor|OutOfMemoryError: CUDA"
            ),
            r"Cuda failure '?(2 )?'?out of memory",
            r"No executable batch size found",
        ),
        cause="the program asked for more memory than the GPU had left",
        remedy=_gpu_memory,
        restart="after a change",
        source=_CUDA_NOTES,
    ),
    Rule(
        name="gpu-library-without-memory",
        patterns=(
            r"CUDNN_STATUS_(NOT_INITIALIZED|ALLOC_FAILED)|CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)",
            (
                r"GET was unable to find an engine to execute this"
                r" computation|CUSOLVER_STATUS_ALLOC_FAILED"
            ),
            r"NVML_SUCCESS == r INTERNAL ASSERT|valid cuDNN algorithm to run",
        ),
        cause="cuDNN or cuBLAS could not start on the GPU, as happens when its memory is full",
        remedy=(
            "look at the GPU's memory (nvidia-smi): if it is full, make the batch smaller or end"
            " what else uses it; if not, CUDA_LAUNCH_BLOCKING=1 in env names the operation that"
            " failed before"
        ),
        restart="after a change",
        source="https://github.com/pytorch/pytorch/issues/53336",
        is_general=True,
    ),
    Rule(
        name="out-of-memory",
        patterns=(r"\b[Oo]ut of memory\b|OutOfMemoryError",),
        unless=r"out of host memory\?|ran out of memory\?",
        cause="the program asked for more memory than it could get",
        remedy=_SMALLER,
        restart="after a change",
        source=_CUDA_NOTES,
    ),
)
