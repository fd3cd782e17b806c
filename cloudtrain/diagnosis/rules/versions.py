"""Rules of packages, libraries and drivers that do not fit each other, and of what compilers need."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

_TORCH = "https://pytorch.org/get-started/previous-versions/"
_PIP = "https://pip.pypa.io/en/stable/topics/dependency-resolution/"

_OWN_MODULES = r"(?:src|utils?|lib|models?|modules?|tools|common|configs?|data|scripts|helpers)\."
"""Pattern of names that programs give to their own folders."""

VERSIONS = (
    Rule(
        name="numpy-abi",
        patterns=(
            r"numpy\.(dtype|ufunc) size changed",
            r"module that was compiled using NumPy 1\.x cannot be run",
            r"numpy\.core\.multiarray failed to import|_ARRAY_API not found",
            r"compiled against (ABI|API) version|[Nn]umpy is not available",
            r"was removed in the NumPy 2|Unable to avoid copy while creating an array",
        ),
        cause="a package was built for another version of NumPy than the one installed",
        remedy=(
            "name a NumPy that fits in the requirements (often numpy<2), or a newer release of the"
            " package that the traceback names"
        ),
        source="https://numpy.org/doc/stable/user/troubleshooting-importerror.html",
    ),
    Rule(
        name="torchvision-mismatch",
        patterns=(
            r"operator torchvision::\w+ does not exist|Couldn't load custom C\+\+ ops",
            r"PyTorch and torchvision .{0,80}different CUDA",
        ),
        cause="torchvision does not fit the installed torch: another release, or another build",
        remedy=(
            "install both of one release and one build from one index of PyTorch (on CPUs its index"
            " of +cpu builds): releases that agree fail, too, if one is +cpu and the other for CUDA"
            " (pip list)"
        ),
        source=_TORCH,
    ),
    Rule(
        name="undefined-symbol",
        patterns=(r"undefined symbol: \S+",),
        cause="a compiled extension was built for another version of torch, Python or CUDA",
        remedy=(
            "install the extension again for the versions in the image, or pin both to releases"
            " that fit"
        ),
        source="https://docs.pytorch.org/tutorials/advanced/cpp_extension.html",
    ),
    Rule(
        name="c-library-too-old",
        patterns=(r"version [`'](GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found",),
        cause="a binary needs a newer C or C++ library than the image has",
        remedy="take an image with a newer base system, or a wheel that is built for an older one",
        source="https://github.com/pypa/manylinux",
    ),
    Rule(
        name="bitsandbytes-setup",
        patterns=(r"CUDA Setup failed despite|Could not (find the|load) bitsandbytes",),
        cause="bitsandbytes found no CUDA library of its own for the CUDA that torch has",
        remedy=(
            "install a release of bitsandbytes that brings a library for torch's CUDA (python -m"
            " bitsandbytes says which it has), and unset BNB_CUDA_VERSION"
        ),
        source="https://huggingface.co/docs/bitsandbytes/main/en/installation",
    ),
    Rule(
        name="library-missing",
        patterns=(
            r"lib[\w+.-]+\.so[.\d]*: cannot open shared object file|OSError: lib\S+ not found",
            r"Library \S+ not (found|loaded)|Could not load library lib|DLL load failed",
            r"Error loading shared library|Cannot find lib[\w+.-]+\.so",
            r"Error relocating .{0,200}symbol not found",
        ),
        cause="a shared library is not in the image",
        remedy=(
            "install the package that holds it in the image (apt-get), or take a wheel that brings"
            " it; if it is there, name its folder in LD_LIBRARY_PATH"
        ),
        remedies=(
            (
                r"libcuda\.so",
                "libcuda is of NVIDIA's driver: no package holds it; name the folder where the"
                " driver has put it in LD_LIBRARY_PATH (WSL: /usr/lib/wsl/lib), or install the"
                " driver",
            ),
        ),
        source="https://docs.python.org/3/library/ctypes.html#finding-shared-libraries",
    ),
    Rule(
        name="package-not-found",
        patterns=(
            r"No matching distribution found|Could not find a version that satisfies",
            r"requires a different Python|ResolvePackageNotFound|ResolutionImpossible",
            r"conflicting dependencies|No solution found when resolving|PackagesNotFoundError",
            r"Could not find a suitable version",
        ),
        suggests=(r"\bInstallRequirementsError\b",),
        cause="pip or conda found no set of packages that fits the requirements",
        remedy=(
            "look at the name, version and Python that it names: loosen the pin, or use an image"
            " with another Python"
        ),
        remedies=(
            (
                r"==\S*\+(?P<build>cu\d+|cpu|rocm[\d.]+)",
                "builds such as +{build} are on PyTorch's own index: name it with --extra-index-url"
                " in the requirements, or leave +{build} out",
            ),
        ),
        source=_PIP,
    ),
    Rule(
        name="command-not-found",
        patterns=(
            r"execve\(\): \S+: No such file",
            r": command not found|(^|/)(ba|da|z)?sh: .{0,80}: not found|: \d+: \S+: not found$",
            r"container exited with code .{0,200}python3?: not found",
            r"\"python3?\": executable file not",
            r"AlgorithmError: , exit code: 127",
            r"is not recognized as (an internal or external|the name of)|不是内部或外部命令|无法将.{0,80}识别为",
            r"executable file not found in \$PATH|pdsh' not installed|cannot run '[^']+': No such file",
            r"No such file or directory: '(mpirun|mpiexec|srun|torchrun|accelerate|deepspeed)'",
        ),
        cause="a program that the job starts is not installed, or not on PATH",
        remedy=(
            "install its package in the image, or start it by its Python: python -m"
            " accelerate.commands.launch, python -m torch.distributed.run"
        ),
        remedies=(
            (
                r"\bmpi(run|exec)\b",
                "install MPI in the image (apt-get install openmpi-bin), or start the ranks without"
                " it: launcher: torchrun",
            ),
            (r"\bpython3?\b['\"]?:", "an image needs python3 with torch on its PATH"),
        ),
        source="https://docs.docker.com/reference/dockerfile/#env",
    ),
    Rule(
        name="versions-conflict",
        patterns=(
            r"is required for a normal functioning of this module|VersionConflict",
            r"DistributionNotFound|Descriptors cannot (not )?be created directly",
            r"[Mm]ismatched NCCL version|NCCL version mismatch",
            r"cuDNN version (incompat|mismatch)",
            r"need .{0,60}version to be .{0,60}[Dd]etected version",
            r"\brequires? [\w.-]{1,60} ?([<>=!~]=?|version) ?.{1,60}(but|found|installed)",
            r"is incompatible with .{0,60}version",
        ),
        cause="packages are installed in versions that do not go together",
        remedies=(
            (
                r"NCCL version",
                "the ranks have different versions of NCCL: use the same image on all nodes",
            ),
        ),
        remedy=(
            "install the versions that the message names (pip install 'name==version'), in"
            " requirements.txt or the image"
        ),
        source=_PIP,
    ),
    Rule(
        name="name-not-in-package",
        patterns=(
            r"cannot import name ['\"]\w+",
            rf"No module named ['\"]?(?!azure|google|distutils|zope|IPython|{_OWN_MODULES})\w+\.\w",
        ),
        unless=r"partially initialized module",
        cause="a package is installed in a version that lacks the name that is imported",
        remedy=(
            "pin the package that the message names to the release that the program was written"
            " for, and those that go with it"
        ),
        source=_PIP,
    ),
    Rule(
        name="relative-import",
        patterns=(r"attempted relative import (with no known parent|beyond top-level) package",),
        cause="a script imports by a leading dot, which only a module of a package may",
        remedy=(
            'start it as a module, entrypoint: "-m package.module", from the folder above the'
            " package; or import without the dot"
        ),
        source="https://docs.python.org/3/tutorial/modules.html#intra-package-references",
    ),
    Rule(
        name="circular-import",
        patterns=(r"partially initialized module",),
        cause="modules import each other, or a file of the program has the name of a package",
        remedy=(
            "rename a file that is called like a package (torch.py, random.py), or move the import"
            " into the function"
        ),
        source="https://docs.python.org/3/faq/programming.html",
    ),
    Rule(
        name="module-not-found",
        patterns=(
            r"[Ff]lash_?-?[Aa]tt(ention|n).{0,80}not (seem to be )?installed",
            r"torch cannot be imported",
            r"FlashAttention2 has been toggled on(?!.*[Dd]etected version)",
            (
                r"ModuleNotFoundError|ImportError: No module named|No module named"
                r" ['\"]?\w|PackageNotFoundError"
            ),
            (
                r"ImportError: .{0,200}(requires? (the )?.{0,80}(librar|package|install)|[Pp]lease"
                r" .{0,20}(pip )?install)"
            ),
            r"(was|were) not found in your environment|(Error|Exception): .{0,200}(is not"
            r" installed|"
            r"[Pp]lease install \w)",
            r"need to have (sentencepiece|tiktoken|protobuf)\w* (or \w+ )?installed",
            r"name 'get_ipython' is not defined",
        ),
        cause="a module that the program imports is not installed where it runs",
        remedy=(
            "name it in requirements.txt beside the program, or under dependencies in job.yaml: it"
            " is installed before the start; a module of your own must be in the source folder"
        ),
        remedies=(
            (
                r"distutils",
                "Python has no distutils since 3.12: name setuptools in requirements.txt, which"
                " brings it, or use an image with Python 3.11",
            ),
            (
                r"[Ff]lash_?-?[Aa]tt",
                "install flash-attn for the torch and CUDA of the image, or choose"
                " attn_implementation='sdpa'",
            ),
            (
                r"torch cannot be imported|No module named '?torch'?$",
                "install torch in the image, or locally in the Python that runs the job",
            ),
            (
                r"IPython|get_ipython",
                "the program comes from a notebook: remove its lines of IPython (get_ipython,"
                " display), or name ipython in requirements.txt and start the notebook itself as"
                " the entrypoint",
            ),
        ),
        source="docs/guides/dependencies-and-images.md",
    ),
    Rule(
        name="attribute-not-in-package",
        patterns=(
            r"'(Distributed|)DataParallel' object has no attribute",
            r"'(FullyShardedDataParallel|DeepSpeedEngine|OptimizedModule)' object has no attribute",
        ),
        suggests=(
            r"AttributeError: module '[\w.]+' has no attribute",
            r"\btype object '\w+' has no attribute",
            (
                r"AttributeError: (type object )?'(?!NoneType|Tensor|Parameter|str|int|float|boo"
                r"l|list|dict|tuple|set|bytes|function|method|DeepSpeedCPUAdam|ndarray|generator"
                r"|DataFrame|Series|Namespace)[A-Za-z_]\w*'( object)? has no attribute"
            ),
        ),
        cause=(
            "a package, or an object of one, lacks the attribute that is used, often since its"
            " version is another"
        ),
        remedy=(
            "if it is a package's, pin that to the release that the program was written for; if it"
            " is your own, correct the name"
        ),
        remedies=(
            (
                r"Parallel'|DeepSpeedEngine'|OptimizedModule'",
                "take model.module where the model is wrapped (DDP, FSDP, DeepSpeed), or keep a"
                " name for it from before",
            ),
        ),
        source=_PIP,
    ),
    Rule(
        name="argument-not-in-package",
        suggests=(
            r"TypeError: .{0,120}(got an unexpected|is an invalid) keyword argument",
            r"TypeError: .{0,120}takes (no|from \d+ to \d+|\d+) (positional |keyword )?arguments?",
            r"TypeError: .{0,120}(missing \d+ required|got multiple values for)",
        ),
        cause=(
            "a function was called with other arguments than it has, often those of another version"
            " of a package"
        ),
        remedy=(
            "if the function is a package's, pin it to the release that the program was written"
            " for; if it is your own, correct the call"
        ),
        source=_PIP,
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
