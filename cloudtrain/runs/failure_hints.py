"""Hints for failures with a known remedy: of jobs, of requests to a cloud, of containers."""

from __future__ import annotations

import re
from collections.abc import Callable

from cloudtrain.runs.events import Cause

SAGEMAKER_TRUST = "the role (aws.role) must trust sagemaker.amazonaws.com: look at its trust policy"

KILLED_FROM_OUTSIDE = (
    "the engine saw no process of this container killed for want of memory: somebody or something sent the signal "
    "(docker kill, docker stop, kill -9)"
)

ENGINE_STOPPED = (
    "cloudtrain rerun goes on from the last checkpoint; containers outlive a restart of the engine where "
    '/etc/docker/daemon.json says "live-restore": true'
)


def sagemaker_quota(said: str) -> str:
    """How to get more of what an account has too little of: a new account's quota of GPU machines is 0."""
    found = re.search(r"'([^']* for [^']*usage)'|(ml\.[a-z0-9-]+\.[a-z0-9]+[^'\".]*usage)", said)
    which = next((text for text in found.groups() if text), "") if found else ""
    quota = f"'{which}'" if which else "the instance type's training job usage"
    return f"ask for more in the console: Service Quotas > Amazon SageMaker > {quota}; or name another instance type"


def azure_quota(said: str) -> str:
    """How to get more of what a subscription has too little of: a new one's quota of GPU machines is 0."""
    found = re.search(r"[Ff]amily '?([\w ]+?)'?[ .,]", said)
    which = f" of {found[1]}" if found else ""
    return (
        f"ask for more{which} in the studio: Quota > Azure Machine Learning > the workspace's region; or another size"
    )


_HINTS: tuple[tuple[str, str | Callable[[str], str]], ...] = (
    (
        r"ResourceLimitExceeded|account-level service limit",
        sagemaker_quota,
    ),
    (
        r"CapacityError|Unable to provision|insufficient capacity|InsufficientInstanceCapacity",
        "name several instance types in order of preference, wait longer (limits.max_wait), or try another region",
    ),
    (
        r"assume.*role|AssumeRole",
        SAGEMAKER_TRUST,
    ),
    (
        r"FailedPullingImage[\s\S]*unauthorized",
        "the identity of the job's machines needs AcrPull on the registry "
        "(Microsoft.ContainerRegistry/registries/pull/read): cloudtrain doctor azure says whose that is",
    ),
    (
        r"FailedPullingImage",
        "look at the image's address, and whether it was pushed to the workspace's registry",
    ),
    (
        r"StreamAccess[\s\S]*(AuthorizationPermissionMismatch|Authentication)",
        "the job's identity needs Storage Blob Data Contributor on the storage account of its inputs and outputs "
        "(Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read, /write and /delete): cloudtrain doctor "
        "azure says whose that is",
    ),
    (
        r"CannotPullContainer|[Ii]mage .*(does not exist|not found|cannot be pulled)|(pull|find|access).* image",
        "look at the image's address; it must be in ECR in the job's region, and the role must be allowed to pull it",
    ),
    (
        r"NoSuchBucket|(bucket|S3).*(different|another|wrong|same) region|PermanentRedirect|must be in region",
        "bucket, inputs and image must be in the job's own region: see aws.bucket and aws.region",
    ),
    (
        r"No S3 objects found|S3 (prefix|key|object).*not (found|exist)",
        "there is nothing at an input's address: look at inputs in job.yaml (aws s3 ls ADDRESS)",
    ),
    (
        r"StreamAccess|DataAccess|data asset .* not found",
        "an input cannot be read: look at its address in job.yaml, and whether the job's identity may read it",
    ),
    (
        r"[Ii]mage build failed|Failed to pull Docker image|ACR|acrpull",
        "look at the image: its log is in the studio, under the environment; the workspace must be allowed to pull it",
    ),
    (
        r"[Bb]us error|SIGBUS|unable to (open|allocate|mmap|write).*(shared memory|/torch_)|/torch_\d+.*No space left",
        "shared memory is too small for the batches of the DataLoader workers: raise resources.shm (docker, azure), or "
        "use fewer workers or a smaller prefetch_factor; SageMaker sizes it by the machine",
    ),
    (
        r"container exited with code .*exec format error",
        "the image is built for another processor architecture than this machine has: docker build --platform …",
    ),
    (
        r"container exited with code .*python3: not found",
        "an image needs python3 with torch on its PATH",
    ),
    (
        r"its container reached the limit",
        "raise docker.memory (CLOUDTRAIN_DOCKER_MEMORY), use fewer DataLoader workers, or make the batch smaller",
    ),
    (
        r"not authorized to perform|AccessDenied|Access Denied",
        "the job's role (aws.role) lacks a permission that the message names",
    ),
    (
        r"out of memory|can't allocate memory|OutOfMemoryError",
        "make the batch smaller (with gradient accumulation the result stays the same) or take a GPU with more memory",
    ),
    (
        r"SIGKILL",
        "most likely the machine ran out of memory: fewer DataLoader workers, a smaller batch, or a larger machine",
    ),
    (
        r"InvalidCxxCompiler|No working C\+\+ compiler|[Ff]ailed to find C compiler|"
        r"(gcc|g\+\+|cc|c\+\+|clang)['\"]?: (command )?not found|No such file or directory: '(gcc|g\+\+|cc|c\+\+)'",
        'torch.compile needs a compiler in the image: image.args = ["WITH_COMPILER=1"] in cloudtrain.toml '
        "(CLOUDTRAIN_IMAGE_ARGS=WITH_COMPILER=1) for our own image, or g++ in yours",
    ),
    (
        r"torch cannot be imported",
        "install it in the image, or locally in the Python that runs the job",
    ),
    (
        r"ModuleNotFoundError",
        "name it in requirements.txt beside the program, or under dependencies in job.yaml: it is installed before the "
        "start; a module of your own must be in the source folder",
    ),
    (
        r"SIGABRT.*while leaving|died by .* while leaving",
        "all work was done; call destroy_process_group() at the end of the script",
    ),
    (
        r"shows \d+ GPUs",
        "ask for fewer GPUs, or for a machine that has as many; in an image of your own: whether it sees the driver",
    ),
    (r"the world has \d+ ranks", "start the processes through the launcher, not with a torchrun of your own"),
    (
        r"Address already in use|EADDRINUSE",
        "the port was taken in that very moment; cloudtrain rerun RUN tries another",
    ),
    (
        r"FileNotFoundError|No such file",
        "only files inside the source folder are in the archive; data is an input (CLOUDTRAIN_INPUT_<NAME>)",
    ),
    (r"No space left", "free some disk space, or ask for more: resources.disk"),
    (
        r"unrecognized arguments|SystemExit.*code 2",
        "the script refused its arguments: see args in job.yaml, and the log",
    ),
)


def hint_for(cause: Cause) -> str | None:
    """What to do about a root cause, None when nothing is known. Whoever reported it may have said it already."""
    return cause.hint or hint_for_message(f"{cause.exception}: {cause.message}")


def hint_for_message(message: str) -> str | None:
    """What to do about a failure of which only a message is known; None when nothing is known."""
    hint = next((hint for pattern, hint in _HINTS if re.search(pattern, message)), None)
    return hint(message) if callable(hint) else hint
