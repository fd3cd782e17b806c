"""Rules: packages, libraries, compilers and drivers that do not fit each other."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

_TORCH = "https://pytorch.org/get-started/previous-versions/"
_PIP = "https://pip.pypa.io/en/stable/topics/dependency-resolution/"

VERSIONS = (
    Rule(
        name="compiler-missing",
        patterns=(
            r"InvalidCxxCompiler|No working C\+\+ compiler|[Ff]ailed to find C compiler",
            r"(gcc|g\+\+|cc|c\+\+|clang)['\"]?: (command )?not found|No such file or directory: '(gcc|g\+\+|cc|c\+\+)'",
        ),
        cause="torch.compile or Triton needs a compiler, and the image has none",
        remedy='torch.compile needs a compiler in the image: image.args = ["WITH_COMPILER=1"] in cloudtrain.toml '
        "(CLOUDTRAIN_IMAGE_ARGS=WITH_COMPILER=1) for our own image, or g++ in yours",
        restart="after a change",
        source="docs/reference/image.md",
    ),
    Rule(
        name="compile-failed",
        patterns=(
            r"BackendCompilerFailed|InductorError|torch\._(dynamo|inductor)\.exc\.\w+|triton\.compiler\.errors\.\w+",
            r"Triton Error \[CUDA\]|Cannot find a working triton installation",
        ),
        cause="torch.compile could not compile the model, or a kernel that it made failed",
        remedy="run once without it (TORCH_COMPILE_DISABLE=1 in env): if that works, update torch, with the Triton of "
        "its release, or leave the function that the message names out (torch.compiler.disable)",
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html",
        is_general=True,
    ),
    Rule(
        name="numpy-abi",
        patterns=(
            r"numpy\.(dtype|ufunc) size changed|module that was compiled using NumPy 1\.x cannot be run",
            r"numpy\.core\.multiarray failed to import|_ARRAY_API not found|compiled against (ABI|API) version",
        ),
        cause="a package was built for another version of NumPy than the one installed",
        remedy="name a NumPy that fits in the requirements (often numpy<2), or a newer release of the package that the "
        "traceback names",
        restart="after a change",
        source="https://numpy.org/doc/stable/user/troubleshooting-importerror.html",
    ),
    Rule(
        name="gpu-not-in-build",
        patterns=(
            r"no kernel image is available for execution|is not compatible with the current PyTorch installation",
            r"invalid device function|CUDA error: device kernel image is invalid|sm_\d+ is not compatible",
        ),
        cause="torch or an extension was not built for this GPU's architecture",
        remedy="take an image with a torch that is built for this GPU (torch.cuda.get_arch_list() names them), or "
        "another GPU",
        restart="after a change",
        source="https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#application-compatibility",
    ),
    Rule(
        name="torchvision-mismatch",
        patterns=(
            r"operator torchvision::\w+ does not exist|Couldn't load custom C\+\+ ops",
            r"PyTorch and torchvision .{0,80}different CUDA",
        ),
        cause="torchvision does not fit the installed torch",
        remedy="install the torchvision of the same release as torch (the table of versions says which)",
        restart="after a change",
        source=_TORCH,
    ),
    Rule(
        name="undefined-symbol",
        patterns=(r"undefined symbol: \S+",),
        cause="a compiled extension was built for another version of torch, Python or CUDA",
        remedy="install the extension again for the versions in the image, or pin both to releases that fit",
        restart="after a change",
        source="https://docs.pytorch.org/tutorials/advanced/cpp_extension.html",
    ),
    Rule(
        name="c-library-too-old",
        patterns=(r"version [`'](GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found",),
        cause="a binary needs a newer C or C++ library than the image has",
        remedy="take an image with a newer base system, or a wheel that is built for an older one",
        restart="after a change",
        source="https://github.com/pypa/manylinux",
    ),
    Rule(
        name="cuda-toolkit",
        patterns=(
            r"CUDA_HOME environment variable is not set|detected CUDA version .{0,80}mismatches the version",
            r"nvcc(: not found| was not found|.{0,20}No such file)|CUDA_HOME does not exist",
        ),
        cause="an extension is being compiled, and the CUDA toolkit is missing or of another version than torch's",
        remedy="take a ready wheel of the extension, or a -devel image whose CUDA is that of torch",
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/cpp_extension.html",
    ),
    Rule(
        name="bitsandbytes-setup",
        patterns=(r"CUDA Setup failed despite|Could not find the bitsandbytes CUDA binary",),
        cause="bitsandbytes found no CUDA library of its own for the CUDA that torch has",
        remedy="install a release of bitsandbytes that brings a library for torch's CUDA (python -m bitsandbytes says "
        "which it has), and unset BNB_CUDA_VERSION",
        restart="after a change",
        source="https://huggingface.co/docs/bitsandbytes/main/en/installation",
    ),
    Rule(
        name="library-missing",
        patterns=(
            r"lib[\w+.-]+\.so[.\d]*: cannot open shared object file|OSError: lib\S+ not found|"
            r"Library \S+ not (found|loaded)",
        ),
        cause="a shared library is not in the image",
        remedy="install the package that holds it in the image (apt-get), or take a wheel that brings it",
        restart="after a change",
        source="https://docs.python.org/3/library/ctypes.html#finding-shared-libraries",
    ),
    Rule(
        name="package-not-found",
        patterns=(
            r"No matching distribution found|Could not find a version that satisfies|requires a different Python",
            r"ResolvePackageNotFound|ResolutionImpossible|conflicting dependencies|No solution found when resolving",
        ),
        cause="pip or conda found no set of packages that fits the requirements",
        remedy="look at the name, version and Python that it names: loosen the pin, or use an image with "
        "another Python",
        restart="after a change",
        source=_PIP,
    ),
    Rule(
        name="flash-attention-missing",
        patterns=(r"flash_attn.{0,80}(not installed|seems to be not installed)|FlashAttention2 has been toggled on",),
        cause="the model asks for flash attention, and the package is not installed",
        remedy="install flash-attn for the torch and CUDA of the image, or choose attn_implementation='sdpa'",
        restart="after a change",
        source="https://huggingface.co/docs/transformers/perf_infer_gpu_one",
    ),
    Rule(
        name="name-not-in-package",
        patterns=(r"cannot import name ['\"]\w+['\"] from",),
        unless=r"partially initialized module",
        cause="a package is installed in a version that lacks the name that is imported",
        remedy="pin the package that the message names to the release that the program was written for, and those that "
        "go with it",
        restart="after a change",
        source=_PIP,
    ),
    Rule(
        name="circular-import",
        patterns=(r"partially initialized module",),
        cause="modules import each other, or a file of the program has the name of a package",
        remedy="rename a file that is called like a package (torch.py, random.py), or move the import into the "
        "function",
        restart="after a change",
        source="https://docs.python.org/3/faq/programming.html",
    ),
    Rule(
        name="module-not-found",
        patterns=(r"ModuleNotFoundError|ImportError: No module named|No module named ['\"]?\w",),
        cause="a module that the program imports is not installed where it runs",
        remedy="name it in requirements.txt beside the program, or under dependencies in job.yaml: it is "
        "installed before "
        "the start; a module of your own must be in the source folder",
        restart="after a change",
        source="docs/guides/dependencies-and-images.md",
    ),
    Rule(
        name="attribute-not-in-package",
        patterns=(r"AttributeError: module '[\w.]+' has no attribute",),
        cause="a package is installed in a version that lacks the attribute that is used",
        remedy="pin the package that the message names to the release that the program was written for",
        restart="after a change",
        source=_PIP,
    ),
    Rule(
        name="argument-not-in-package",
        patterns=(r"TypeError: .{0,120}(got an unexpected|is an invalid) keyword argument",),
        cause="a function was called with an argument that it does not have, often one of another version of a package",
        remedy="if the function is a package's, pin it to the release that the program was written for; if it is your "
        "own, correct the call",
        restart="after a change",
        source=_PIP,
    ),
)
