"""Rules of compilers, and of binaries that were not built for the machine."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

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
            'torch.compile needs a compiler in the image: image.args = ["WITH_COMPILER=1"] in'
            " cloudtrain.toml (CLOUDTRAIN_IMAGE_ARGS=WITH_COMPILER=1) for our own image, or g++ in"
            " yours"
        ),
        restart="after a change",
        source="docs/reference/image.md",
    ),
    Rule(
        name="compile-failed",
        patterns=(
            r"BackendCompilerFailed|InductorError|torch\._(dynamo|inductor)\.exc\.\w+|triton\.compiler\.errors\.\w+",
            (
                r"Triton Error \[CUDA\]|Cannot find a working triton"
                r" installation|torch\._(dynamo|inductor)\S*: \[ERROR\]"
            ),
            r"CppCompileError|C\+\+ compile error|LoweringException|TritonMissing|ptxas fatal",
        ),
        places=(r" in [^<]{0,200}/torch/_(dynamo|inductor|functorch)/|^[^<]*<[^<]*/triton/",),
        cause="torch.compile could not compile the model, or a kernel that it made failed",
        remedy=(
            "run once without it (TORCH_COMPILE_DISABLE=1 in env): if that works, update torch,"
            " with the Triton of its release, or leave the function that the message names out"
            " (torch.compiler.disable)"
        ),
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html",
        is_general=True,
    ),
    Rule(
        name="gpu-not-in-build",
        patterns=(
            (
                r"no kernel image is available for execution|is not compatible with the current"
                r" PyTorch installation"
            ),
            (
                r"invalid device function|CUDA error: device kernel image is invalid|sm_\d+ is not"
                r" compatible"
            ),
            r"Unsupported gpu architecture|invalid value for --gpu-architecture",
        ),
        cause="torch or an extension was not built for this GPU's architecture",
        remedy=(
            "take an image with a torch that is built for this GPU (torch.cuda.get_arch_list()"
            " names them), or another GPU"
        ),
        restart="after a change",
        source="https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#application-compatibility",
    ),
    Rule(
        name="cuda-toolkit",
        patterns=(
            (
                r"CUDA_HOME environment variable is not set|detected CUDA version .{0,80}mismatches"
                r" the version"
            ),
            r"nvcc(: not found| was not found|.{0,20}No such file)|CUDA_HOME does not exist",
            (
                r"Installed CUDA version .{0,80}does not"
                r" match|CUDAMismatchException|MissingCUDAException"
            ),
        ),
        cause=(
            "an extension is being compiled, and the CUDA toolkit is missing or of another version"
            " than torch's"
        ),
        remedy="take a ready wheel of the extension, or a -devel image whose CUDA is that of torch",
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/cpp_extension.html",
    ),
    Rule(
        name="extension-not-built",
        patterns=(
            (
                r"Error (building|compiling) (extension|objects)|ninja: build stopped|\['ninja',"
                r" '-v'\]|Unable to JIT load"
            ),
            (
                r"Failed (building|to build) |Could not build wheels|did not run"
                r" successfully|error: command .{0,80}failed"
            ),
            r"subprocess-exited-with-error|metadata-generation-failed|fatal error:"
            r" \S{1,200}\.(h|hpp|"
            r"cuh): No such file",
            r"'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'|collect2: error|nvcc fatal",
            r"\bld(\.\w+)?: (cannot find|unable to find|library not found)|undefined reference to",
        ),
        places=(r" in [^<]{0,200}(/torch/utils/cpp_extension\.py|/op_builder/)",),
        unless=r"[Ii]mage|Docker",
        cause="an extension in C++ or CUDA could not be compiled",
        remedy=(
            "look at the first error of the compiler above; a -devel image whose CUDA is that of"
            " torch, g++ and ninja are needed; a ready wheel of the package needs none of them"
        ),
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/cpp_extension.html",
        is_general=True,
    ),
)
