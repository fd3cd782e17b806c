"""Rules of images and containers, and of compilers."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

_AZURE = "https://learn.microsoft.com/azure/machine-learning/how-to-troubleshoot-environments"

IMAGES = (
    Rule(
        name="image-pull-unauthorized",
        patterns=(
            r"FailedPullingImage[\s\S]{0,2000}unauthorized|pull access denied",
            r"denied: requested access to",
        ),
        cause="the job's machines are not allowed to pull the image",
        remedy=(
            "the identity of the job's machines needs AcrPull on the registry"
            " (Microsoft.ContainerRegistry/registries/pull/read): cloudtrain doctor azure says"
            " whose that is"
        ),
        source=_AZURE,
    ),
    Rule(
        name="image-not-found",
        patterns=(
            r"CannotPullContainer|FailedPullingImage|[Ii]mage .{0,200}(does not exist|not found|cannot be pulled)",
            r"(pull|find|access).{0,40} image|manifest (for \S+ not found|unknown)",
            r"ImagePullBackOff|ErrImagePull",
        ),
        unless=r"image file|[Ii]mageNet|PIL|\.(jpe?g|png)",
        cause="the image is not at its address, or may not be pulled",
        remedy=(
            "look at the image's address, and whether it was pushed: to ECR in the job's region,"
            " which the role may pull from, or to the workspace's registry"
        ),
        source="https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo.html",
    ),
    Rule(
        name="image-build-failed",
        patterns=(
            r"[Ii]mage build failed|Failed to pull Docker image|\bACR\b|acrpull",
            r"EnvironmentBuildFailed|Failed building the Environment",
            r"failed to run step ID: acb_step|failed to solve: |executor failed running",
            r"The command '.{1,400}' returned a non-zero code",
        ),
        cause="the cloud could not build or pull the environment's image",
        remedy=(
            "look at the image: its log is in the studio, under the environment; the workspace must"
            " be allowed to pull it"
        ),
        source=_AZURE,
    ),
    Rule(
        name="no-docker",
        patterns=(
            r"[Cc]annot connect to the Docker daemon",
            r"while trying to connect to the [Dd]ocker (daemon|API)",
        ),
        cause="the Docker engine does not answer, or may not be used",
        remedy=(
            "start it (systemctl start docker), and join its group (usermod -aG docker USER, then"
            " log in again)"
        ),
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
        source="https://docs.docker.com/build/building/multi-platform/",
    ),
    Rule(
        name="no-python",
        patterns=(
            r"container exited with code .{0,200}python3?: not found",
            r"\"python3?\": executable file not found|AlgorithmError: , exit code: 127",
        ),
        cause="the image has no Python where the job starts",
        remedy="an image needs python3 with torch on its PATH",
        source="docs/reference/image.md",
    ),
    Rule(
        name="no-torch",
        patterns=(r"torch cannot be imported|No module named '?torch'?$",),
        cause="torch cannot be imported where the job runs",
        remedy="install it in the image, or locally in the Python that runs the job",
        source="docs/reference/image.md",
    ),
    Rule(
        name="container-cannot-start",
        patterns=(
            r"OCI runtime create failed|failed to create (shim|containerd) task",
            r"CannotStartContainerError|lacks what the job starts with|error creating container",
            r"Error response from daemon: (layer|failed to (create|start)|mount|invalid mount)",
        ),
        cause="the container could not be started",
        remedy=(
            "read the rest of that line: it names the program, mount or device that the container"
            " lacks"
        ),
        source="https://docs.docker.com/engine/containers/run/#exit-status",
        is_symptom=True,
    ),
)

BUILDS = (
    Rule(
        name="compiler-missing",
        patterns=(
            r"InvalidCxxCompiler|No working C\+\+ compiler|[Ff]ailed to find C compiler",
            (
                r"(gcc|g\+\+|cc|c\+\+|clang)['\"]?: (command )?not found|No such file or directory:"
                r" '(gcc|g\+\+|cc|c\+\+)'"
            ),
        ),
        cause="torch.compile or Triton needs a compiler, and the image has none",
        remedy=(
            "add gcc and g++ to your image (apt-get install gcc g++ python3-dev); our own image has"
            " them"
        ),
        source="docs/reference/image.md",
    ),
    Rule(
        name="compile-failed",
        patterns=(
            r"BackendCompilerFailed|InductorError|torch\._(dynamo|inductor)\.exc\.\w+",
            r"triton\.compiler\.errors\.\w+|Triton Error \[CUDA\]",
            r"Cannot find a working triton installation|torch\._(dynamo|inductor)\S*: \[ERROR\]",
            r"CppCompileError|C\+\+ compile error|LoweringException|TritonMissing|ptxas fatal",
        ),
        places=(r" in [^<]{0,200}/torch/_(dynamo|inductor|functorch)/|^[^<]*<[^<]*/triton/",),
        cause="torch.compile could not compile the model, or a kernel that it made failed",
        remedy=(
            "run once without it (TORCH_COMPILE_DISABLE=1 in env): if that works, update torch,"
            " with the Triton of its release, or leave the function that the message names out"
            " (torch.compiler.disable)"
        ),
        source="https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html",
        is_symptom=True,
    ),
    Rule(
        name="gpu-not-in-build",
        patterns=(
            r"no kernel image is available for execution",
            r"is not compatible with the current PyTorch installation|invalid device function",
            r"CUDA error: device kernel image is invalid|sm_\d+ is not compatible",
            r"Unsupported gpu architecture|invalid value for --gpu-architecture",
        ),
        cause="torch or an extension was not built for this GPU's architecture",
        remedy=(
            "take an image with a torch that is built for this GPU (torch.cuda.get_arch_list()"
            " names them), or another GPU"
        ),
        source="https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#application-compatibility",
    ),
    Rule(
        name="cuda-toolkit",
        patterns=(
            r"CUDA_HOME environment variable is not set",
            r"detected CUDA version .{0,80}mismatches the version",
            r"nvcc(: not found| was not found|.{0,20}No such file)|CUDA_HOME does not exist",
            r"Installed CUDA version .{0,80}does not match|CUDAMismatchException",
            r"MissingCUDAException",
        ),
        cause=(
            "an extension is being compiled, and the CUDA toolkit is missing or of another version"
            " than torch's"
        ),
        remedy="take a ready wheel of the extension, or a -devel image whose CUDA is that of torch",
        source="https://docs.pytorch.org/docs/stable/cpp_extension.html",
    ),
    Rule(
        name="extension-not-built",
        patterns=(
            r"Error (building|compiling) (extension|objects)|ninja: build stopped",
            r"\['ninja', '-v'\]|Unable to JIT load|Failed (building|to build) ",
            r"Could not build wheels|did not run successfully|error: command .{0,80}failed",
            r"subprocess-exited-with-error|metadata-generation-failed",
            r"fatal error: \S{1,200}\.(h|hpp|cuh): No such file",
            r"'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'|collect2: error",
            r"nvcc fatal|\bld(\.\w+)?: (cannot find|unable to find|library not found)",
            r"undefined reference to",
        ),
        places=(r" in [^<]{0,200}(/torch/utils/cpp_extension\.py|/op_builder/)",),
        unless=r"[Ii]mage|Docker|Environment",
        cause="an extension in C++ or CUDA could not be compiled",
        remedy=(
            "look at the first error of the compiler above; a -devel image whose CUDA is that of"
            " torch, g++ and ninja are needed; a ready wheel of the package needs none of them"
        ),
        source="https://docs.pytorch.org/docs/stable/cpp_extension.html",
        is_symptom=True,
    ),
)
