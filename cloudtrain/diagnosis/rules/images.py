"""Rules of images that cannot be pulled or built, and containers that cannot start."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

_AZURE = "https://learn.microsoft.com/azure/machine-learning/how-to-troubleshoot-environments"

IMAGES = (
    Rule(
        name="image-pull-unauthorized",
        patterns=(
            r"FailedPullingImage[\s\S]{0,2000}unauthorized",
            r"pull access denied|denied: requested access to",
        ),
        cause="the job's machines are not allowed to pull the image",
        remedy=(
            "the identity of the job's machines needs AcrPull on the registry"
            " (Microsoft.ContainerRegistry/registries/pull/read): cloudtrain doctor azure says"
            " whose that is"
        ),
        restart="after a change",
        source=_AZURE,
    ),
    Rule(
        name="image-not-pulled",
        patterns=(r"FailedPullingImage",),
        cause="the job's machines could not pull the image",
        remedy="look at the image's address, and whether it was pushed to the workspace's registry",
        restart="after a change",
        source=_AZURE,
    ),
    Rule(
        name="image-not-found",
        patterns=(
            r"CannotPullContainer|[Ii]mage .{0,200}(does not exist|not found|cannot be pulled)",
            (
                r"(pull|find|access).{0,40} image|manifest (for \S+ not"
                r" found|unknown)|ImagePullBackOff|ErrImagePull"
            ),
        ),
        unless=r"image file|[Ii]mageNet|PIL|\.(jpe?g|png)",
        cause="the image is not at its address, or may not be pulled",
        remedy=(
            "look at the image's address; it must be in ECR in the job's region, and the role must"
            " be allowed to pull it"
        ),
        restart="after a change",
        source="https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo.html",
    ),
    Rule(
        name="image-build-failed",
        patterns=(
            (
                r"[Ii]mage build failed|Failed to pull Docker image|\bACR\b|acrpull|failed to run"
                r" step ID: acb_step"
            ),
            (
                r"failed to solve: |executor failed running|The command '.{1,400}' returned a"
                r" non-zero code"
            ),
        ),
        cause="the cloud could not build or pull the environment's image",
        remedy=(
            "look at the image: its log is in the studio, under the environment; the workspace must"
            " be allowed to pull it"
        ),
        restart="after a change",
        source=_AZURE,
    ),
    Rule(
        name="no-docker",
        patterns=(
            (
                r"[Cc]annot connect to the Docker daemon|while trying to connect to the [Dd]ocker"
                r" (daemon|API)"
            ),
        ),
        cause="the Docker engine does not answer, or may not be used",
        remedy=(
            "start it (systemctl start docker), and join its group (usermod -aG docker USER, then"
            " log in again)"
        ),
        restart="after a change",
        source="https://docs.docker.com/engine/daemon/troubleshoot/",
    ),
    Rule(
        name="wrong-architecture",
        patterns=(
            r"exec format error|Exec format error|does not match the detected host platform",
            r"no matching manifest for",
        ),
        cause=(
            "the image, or a program in it, is built for another processor architecture than this"
            " machine has"
        ),
        remedy=(
            "the image is built for another processor architecture than this machine has: docker"
            " build --platform …"
        ),
        restart="after a change",
        source="https://docs.docker.com/build/building/multi-platform/",
    ),
    Rule(
        name="no-python",
        patterns=(
            r"container exited with code .{0,200}python3?: not found",
            r"\"python3?\": executable file not found",
        ),
        cause="the image has no Python where the job starts",
        remedy="an image needs python3 with torch on its PATH",
        restart="after a change",
        source="docs/reference/image.md",
    ),
    Rule(
        name="no-torch",
        patterns=(r"torch cannot be imported", r"No module named '?torch'?$"),
        cause="torch cannot be imported where the job runs",
        remedy="install it in the image, or locally in the Python that runs the job",
        restart="after a change",
        source="docs/reference/image.md",
    ),
    Rule(
        name="container-cannot-start",
        patterns=(
            (
                r"OCI runtime create failed|failed to create (shim|containerd)"
                r" task|CannotStartContainerError"
            ),
            r"lacks what the job starts with",
            r"error creating container|Error response from daemon: (layer|failed to"
            r" (create|start)|mount|"
            r"invalid mount)",
        ),
        cause="the container could not be started",
        remedy=(
            "read the rest of that line: it names the program, mount or device that the container"
            " lacks"
        ),
        restart="after a change",
        source="https://docs.docker.com/engine/containers/run/#exit-status",
        is_general=True,
    ),
)
