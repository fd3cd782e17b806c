"""Rules of memory and of tensors."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

_CUDA_NOTES = "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management"
_AUTOGRAD = "https://docs.pytorch.org/docs/stable/notes/autograd.html"
_SMALLER = (
    "make the batch smaller (with gradient accumulation the result stays the same) or take a GPU"
    " with more memory"
)


MEMORY = (
    Rule(
        name="container-memory-limit",
        patterns=(
            r"its container reached the limit|Memory cgroup out of memory|CONSTRAINT_MEMCG",
            r"\"?\bOOMKilled\b(?!\"?\s*[:=]\s*\"?(false|no))",
        ),
        cause=(
            "the container reached its limit of host memory, and the kernel killed a process in it"
        ),
        remedy=(
            "raise docker.memory (CLOUDTRAIN_DOCKER_MEMORY), use fewer DataLoader workers, or make"
            " the batch smaller"
        ),
        source="https://docs.docker.com/engine/containers/resource_constraints/",
    ),
    Rule(
        name="host-out-of-memory",
        patterns=(
            r"Out of memory: Kill(ed)? process|CONSTRAINT_NONE|oom_reaper: reaped process",
            r"invoked oom-killer|[Dd]etected \d+ oom[-_]kill event|oom-kill event",
            r"task .{0,60} was killed .{0,20}OOM|OutOfMemoryHandler",
            r"killed due to the node running low on memory|node was low on resource: memory",
            r"[Ee]xceeded (job|step) memory limit|use an instance (type )?with more memory",
            r"killed by SIGKILL: out of host memory|task \d+: Out Of Memory",
            r"(JobState|State)=OUT_OF_ME|Artifact upload failed:.{0,60}Out of Memory",
        ),
        cause="the machine ran out of host memory, and a process was killed for it",
        remedy=(
            "use fewer DataLoader workers, load less into memory at once, or take a machine with"
            " more memory"
        ),
        source="https://docs.kernel.org/admin-guide/mm/concepts.html#oom-killer",
    ),
    Rule(
        name="shared-memory",
        patterns=(
            r"signal: Bus error",
            r"unable to (open|allocate|mmap|write).{0,80}(shared memory|/torch_)",
            r"/torch_\d+.{0,200}No space left|insufficient shared memory|out of shared memory",
            r"/shm/nccl-|creating shared memory segment|posix_fallocate failed",
        ),
        suggests=(r"[Bb]us error|SIGBUS",),
        cause="shared memory (/dev/shm) was too small",
        remedy=(
            "shared memory is too small for the batches of the DataLoader workers: raise"
            " resources.shm (docker, azure), or use fewer workers or a smaller prefetch_factor;"
            " SageMaker sizes it by the machine"
        ),
        remedies=(
            (
                r"^(?!.*(worker|shared)).*([Bb]us error|SIGBUS)",
                "with DataLoader workers, raise resources.shm or use fewer; without, a mapped file"
                " (memmap, safetensors) was cut short or its disk is full: copy it again",
            ),
        ),
        source="https://github.com/pytorch/pytorch#docker-image",
    ),
    Rule(
        name="host-allocation-failed",
        patterns=(
            r"DefaultCPUAllocator: (can't|not enough)|[Cc]an't allocate memory",
            r"Cannot allocate memory|^MemoryError\b|[:\]] MemoryError\b|_ArrayMemoryError",
            r"std::bad_alloc|Unable to allocate [\d.]+ [KMGT]iB|paging file is too small",
            r"Insufficient system resources|Not enough memory resources",
        ),
        unless=r"ibv_|NCCL WARN",
        cause="the program asked for more host memory than it could get",
        remedy=(
            "load less into host memory at once (memory-mapped or streamed data, fewer workers, a"
            " smaller batch), or take a machine with more memory"
        ),
        source="https://github.com/pytorch/pytorch/blob/main/c10/core/impl/alloc_cpu.cpp",
    ),
    Rule(
        name="gpu-out-of-memory",
        patterns=(
            r"(CUDA|HIP|XPU|MPS backend) (error: )?out of memory",
            r"torch\.(cuda\.)?OutOfMemoryError|cudaErrorMemoryAllocation",
            r"CUDA_ERROR_OUT_OF_MEMORY|OOM when allocating tensor|OutOfMemoryError: CUDA",
            r"Cuda failure '?(2 )?'?out of memory|No executable batch size found",
        ),
        suggests=(r"\b[Oo]ut of memory\b|OutOfMemoryError",),
        unless=r"out of host memory\?|ran out of memory\?",
        cause="the program asked for more memory than the GPU had left",
        remedy=_SMALLER,
        remedies=(
            (
                r"Process \d+ has (?P<held>[1-9][\d.]*) GiB memory in use",
                "another process holds {held} GiB of this GPU: end it, or give each rank a GPU of"
                " its own; if it belongs to the same job, make the batch smaller",
            ),
        ),
        source=_CUDA_NOTES,
    ),
    Rule(
        name="gpu-library-without-memory",
        patterns=(
            r"CUDNN_STATUS_(NOT_INITIALIZED|ALLOC_FAILED)",
            r"CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)",
            r"GET was unable to find an engine to execute this computation",
            r"CUSOLVER_STATUS_ALLOC_FAILED|NVML_SUCCESS == r INTERNAL ASSERT",
            r"valid cuDNN algorithm to run",
        ),
        cause="cuDNN or cuBLAS could not start on the GPU, as happens when its memory is full",
        remedy=(
            "look at the GPU's memory (nvidia-smi): if it is full, make the batch smaller or end"
            " what else uses it; if not, CUDA_LAUNCH_BLOCKING=1 in env names the operation that"
            " failed before"
        ),
        source="https://github.com/pytorch/pytorch/issues/53336",
        is_symptom=True,
    ),
)

TENSORS = (
    Rule(
        name="devices-mixed",
        patterns=(
            r"[Ee]xpected all tensors to be on the same device|is not on the expected device",
            r"should be the same|Input type .{0,80}and (weight|bias) type",
            r"can't convert .{0,20}device type tensor to numpy|parameters and buffers on device",
            r"[Ee]xpected object of (device|backend) type|[Tt]ensors? .{0,60}same device",
            r"tensors must be on devices\[0\]",
        ),
        unless=r"c10::|(shape|size|length|number)s? .{0,20}should be the same",
        cause="an operation got tensors of different devices or types",
        remedy=(
            "move the model and every tensor of a batch to the rank's device (.to(device)), and use"
            " one dtype or autocast"
        ),
        source="https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.device",
    ),
    Rule(
        name="dtypes-mixed",
        patterns=(
            r"expected scalar type|(must|to|should) have the same d?type|expected .{0,30}dtype",
            r"not implemented for '\w|Found dtype \w+ but expected|Input type .{0,40}c10::\w+",
            r"following scalar types|[Ee]xpected object of scalar type",
            r"can't be cast to the desired output type|source and destination dtypes match",
            r"cannot be cast to|can't convert np\.ndarray of type",
            (
                r"(?i:Error ?[:：].{0,80}only su\w*pp?orts? .{0,30}\b(fp16|bf16|fp32|float16|bflo"
                r"at16|float32|half)\b)"
            ),
        ),
        cause="an operation got a tensor of a type that it does not take",
        remedy=(
            "convert it (.float(), .long()) or run under torch.autocast; labels of cross entropy"
            " are whole numbers"
        ),
        source="https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.dtype",
    ),
    Rule(
        name="shapes-differ",
        patterns=(
            r"shapes cannot be multiplied|[Ss]izes of tensors must match",
            r"must match the size of tensor|size of tensor a",
            r"shape '\[.{0,80}\]' is invalid for input|[Ee]xpected input batch_size",
            r"mat1 dim 1 must match|expected input\[.{0,80}\] to have \d+ channels",
            r"Mismatch in shape: |to have the same number of dimensions",
            r"The expanded size of the tensor|size mismatch, (m|got)|could not be broadcast",
            r"could not broadcast|inhomogeneous shape|Given groups=\d+, weight of size",
            r"[Ee]xpected \d+-?[dD] .{0,40}(input|tensor)|EinopsError",
            r"view size is not compatible|more than 1 value per channel when training",
            r"[Kk]ernel size can't be greater|Output size is too small|split_with_sizes expects",
            r"mask .{0,40}(shape|size) .{0,60}(match|but)|must match the existing size",
            r"is out of bounds for (dimension|axis)|Dimension out of range|too many indices for",
            r"same number of (samples|elements)|inconsistent numbers? of samples",
            r"input\.size\(-1\) must be equal|must match except in dimension|non-empty \d+-?D",
            r"Padding size should be less|target size .{0,60}(must|different)|negative dimension",
            r"has no dimensions|0-d(im)? tensor",
            r"more than one (value|element).{0,40}(ambiguous|scalar)|only one element tensors",
            r"must be the same as input size|should be of size .{0,60}but",
            r"multi-target not supported|cannot reshape (tensor|array)",
            r"cannot be converted to Scalar|must have (the )?(same )?shapes?\b",
        ),
        cause="an operation got tensors whose shapes do not fit",
        remedy=(
            "compare the shape of a batch with what the first layer expects; look at the line of"
            " the traceback"
        ),
        remedies=(
            (
                r"more than 1 value per channel when training",
                "batch normalization needs two samples: pass drop_last=True to the DataLoader, or"
                " use larger batches",
            ),
        ),
        source="https://docs.pytorch.org/docs/stable/notes/broadcasting.html",
    ),
    Rule(
        name="changed-in-place",
        patterns=(
            r"has been modified by an inplace operation|marked (as )?ready (only )?(once|twice)",
            r"backward through the graph a second time",
            r"[Rr]ecomputed values for the following tensors|leaf [Vv]ariable that requires grad",
            r"is a view and (is|its base).{0,80}inplace",
        ),
        cause="autograd needs a value that was changed or freed before",
        remedy=(
            "replace the operation in place (+=, relu_), call backward once per forward, and use"
            " checkpoint(use_reentrant=False) with DDP; torch.autograd.set_detect_anomaly(True)"
            " names the operation"
        ),
        source=_AUTOGRAD,
    ),
    Rule(
        name="no-gradient",
        patterns=(
            r"does not require grad and does not have a grad_fn",
            r"optimizer got an empty parameter list",
            r"doesn't have any parameters that require a gradient",
            r"can be implicitly created only for scalar outputs",
            r"None of the inputs have requires_grad=True",
            r"floating point .{0,40}can require gradients",
        ),
        unless=r"Warning|warnings\.warn",
        cause=(
            "the loss cannot be differentiated: it does not depend on trained values, or is not"
            " one number"
        ),
        remedy=(
            "see that parameters have requires_grad, that the loss is one number (.mean()), and"
            " that it is not computed under no_grad or detached; with LoRA and gradient"
            " checkpointing call model.enable_input_require_grads()"
        ),
        source=_AUTOGRAD,
    ),
    Rule(
        name="mixed-precision-misused",
        patterns=(
            r"Attempting to unscale FP16 gradients|No inf checks were recorded",
            r"unscale_\(\) (has already|is being)",
        ),
        cause="the scaler of mixed precision is used in a way that it does not allow",
        remedy=(
            "keep trained parameters in fp32 (autocast casts them), and call scale, unscale_, step"
            " and update once each per step"
        ),
        source="https://docs.pytorch.org/docs/stable/notes/amp_examples.html",
    ),
)
