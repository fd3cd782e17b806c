"""The table of bad input: the input, the exit code, and the expected message. One row each."""

# ruff: noqa: E501  (one row, one line)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BIG = "args: {x: '" + "a" * 10_000_000 + "'}\n"
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(8)
)


@dataclass(frozen=True)
class Row:
    """One kind of bad input."""

    id: str
    code: int
    shown: tuple[str, ...]
    job: str | bytes | None
    argv: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    """More files beside the job; a name that ends in `/` is a folder."""
    env: Mapping[str, str] = field(default_factory=dict)


def spec(id: str, at: str, *shown: str, job: str | bytes, **files: str) -> Row:
    """A mistake in job.yaml, told with its line and column."""
    return Row(
        id,
        2,
        (f"job.yaml:{at}: ", *shown),
        job,
        ("check",),
        {n.replace("_py", ".py"): t for n, t in files.items()},
    )


def use(
    id: str, code: int, *shown: str, argv: str, job: str | None = "{}\n", **more: Mapping[str, str]
) -> Row:
    """Anything else, by the words of the command."""
    return Row(id, code, shown, job, tuple(argv.split(" ")), **more)


ROWS = [
    # what the file says
    spec("unknown key", "1:1", "nmae: unknown key (did you mean 'name'?)", job="nmae: x\n"),
    spec("unknown key inside", "2:3", "resources.node: unknown key (did you mean 'nodes'?)", job="resources:\n  node: 2\n"),
    spec("wrong type", "1:13", "resources.nodes: expected a whole number, got 'two'", job="resources: {nodes: two}\n"),
    spec("fraction of a node", "1:13", "expected a whole number, got 1.5", job="resources: {nodes: 1.5}\n"),
    spec("text for a switch", "1:13", "resources.spot: expected true or false, got 'yes'", job="resources: {spot: yes}\n"),
    spec("section is a word", "1:1", "resources: expected a mapping, got 'big'", job="resources: big\n"),
    spec("section is empty", "1:1", "limits: expected a mapping, got nothing", job="limits:\n"),
    spec("bad unit", "1:10", "cannot read '6 hodr' as a duration; write for example", job="limits: {max_runtime: 6 hodr}\n"),
    spec("bare number", "1:10", "max_runtime: 6 has no unit; write for example 90 s", job="limits: {max_runtime: 6}\n"),
    spec("bare amount", "1:10", "max_cost: 50 has no unit; write for example 50 USD", job="limits: {max_cost: 50}\n"),
    spec("negative count", "1:13", "resources.nodes: must be at least 1, got -1", job="resources: {nodes: -1}\n"),
    spec("no processes", "1:13", "processes: must be between 1 and 1024, got 0", job="resources: {processes: 0}\n"),
    spec("too many nodes", "1:13", "500 nodes exceed the limit of local", job="resources: {nodes: 500}\n"),
    spec("gpu and instance", "1:33", "instance: conflicts with gpu", "hint: keep gpu", job="resources: {gpus: 8, gpu: H100, instance: {aws: x}}\n"),
    spec("unknown GPU", "1:22", "unknown GPU 'A100-80' (did you mean 'A100-80GB'?)", job="resources: {gpus: 8, gpu: A100-80}\n"),
    spec("GPU model, no count", "1:13", "names a GPU model without a count", "hint: set gpus", job="resources: {gpu: H100}\n"),
    spec("bad job name", "1:1", "'my job' is not a valid job name", "hint: up to 50 letters", job="name: my job\n"),
    spec("long job name", "1:1", "is not a valid job name", job=f"name: {'x' * 51}\n"),
    spec("name only of a hyphen", "1:1", "'-' is not a valid job name", job="name: '-'\n"),
    spec("entrypoint missing", "1:1", "no such file in the source folder: trian.py (did you mean 'train.py'?)", job="entrypoint: trian.py\n", train_py=""),
    spec("entrypoint with arguments", "1:1", "entrypoint: contains arguments", "hint: put arguments into args: write entrypoint: train.py and args: {lr: 3}", job="entrypoint: train.py --lr 3\n", train_py=""),
    spec("entrypoint of python", "1:1", "starts with 'python', but torchrun already starts the program", "hint: write entrypoint: train.py and args: {x: 1}", job="entrypoint: python train.py --x 1\n", train_py=""),
    spec("entrypoint of torchrun", "1:1", "starts with 'torchrun'", "write entrypoint: -m a.b and args: {x: 1} and resources: {nodes: 2, processes: 4}", job="entrypoint: torchrun --nnodes=2 --nproc_per_node 4 -m a.b --x 1\n"),
    spec("entrypoint of a launcher alone", "1:1", "starts with 'bash'", "hint: name only the program", job="entrypoint: bash run.sh\n"),
    spec("option of the trainer", "1:24", "args.epocsh: the shared trainer has no option --epocsh (did you mean 'epochs'?)", "1:8: args.strategy: the shared trainer says: argument --strategy: invalid choice", "(did you mean 'fsdp'?)", job="args: {strategy: fsdq, epocsh: 3}\n"),
    spec("option of the trainer in a list", "1:8", "args[0]: the shared trainer says", job="args: [--lr, x]\n"),
    spec("entrypoint outside", "1:1", "'../x.py' is outside the source folder", "hint: move it", job="entrypoint: ../x.py\n"),
    spec("entrypoint absolute", "1:1", "'/x.py' is an absolute path", job="entrypoint: /x.py\n"),
    spec("entrypoint is a folder", "1:1", "'code' is a folder", job="entrypoint: code\n", **{"code/": ""}),
    spec("entrypoint is no program", "1:1", "'a.txt' is not a .py script", job="entrypoint: a.txt\n", **{"a.txt": ""}),
    spec("module missing", "1:1", "no module pkg.train in the source folder", job="entrypoint: -m pkg.train\n", **{"pkg/": ""}),
    spec("module with arguments", "1:1", "contains arguments", "write entrypoint: -m a and args: [\"b\"]", job="entrypoint: -m a b\n"),
    spec("source missing", "1:1", "source: no such folder: code", job="source: code\n"),
    spec("source is a file", "1:1", "source: is a file, not a folder", job="source: train.py\n", train_py=""),
    spec("source cannot exist", "1:1", "source: cannot be read: File name too long", job=f"source: {'x' * 999}\n"),
    spec("NUL escaped", "1:1", "source: contains a NUL character", job='source: "a\\0b"\n'),
    spec("s3 on local", "1:10", "s3://b/x cannot be read by the local provider", "hint: name one per provider", job="inputs: {a: s3://b/x}\n"),
    spec("input nowhere here", "1:10", "inputs.a: has no URI for provider local", job="inputs: {a: {aws: s3://b/x}}\n"),
    spec("input of nobody", "1:10", "unknown user: '~nobody-here/x'", job="inputs: {a: ~nobody-here/x}\n"),
    spec("input of no disk", "1:10", "inputs.a: the path is too long for any disk", job=f"inputs: {{a: {'x' * 300}}}\n"),
    spec("input is empty", "1:10", "inputs.a: is empty", job="inputs: {a: ''}\n"),
    spec("input name", "1:10", "inputs.1a: is not a valid input name", job="inputs: {1a: ./x}\n"),
    spec("inputs share a variable", "1:20", "inputs.a_b: shares the variable CLOUDTRAIN_INPUT_A_B with 'a-b'", job="inputs: {a-b: ./x, a_b: ./y}\n"),
    spec("secret nowhere here", "1:11", "secrets.HF: has no URI for provider local", "hint: add local: 'env:HF'", job="secrets: {HF: {aws: ssm:hf}}\n"),
    spec("secret in clear", "1:11", "hint: a spec names the place of a secret, not its value", job="secrets: {HF: hunter2}\n"),
    spec("secret in clear, deeper", "1:16", "expected 'env:NAME'", job="secrets: {HF: {local: hunter2}}\n"),
    spec("secret and env", "2:11", "secrets.A: is also set by env", job="env: {A: x}\nsecrets: {A: {local: env:A}}\n"),
    spec("env name", "1:7", "env.1A: is not a valid variable name", job="env: {1A: x}\n"),
    spec("env name reserved", "1:7", "env.CLOUDTRAIN_X: is reserved: cloudtrain sets", job="env: {CLOUDTRAIN_X: x}\n"),
    spec("env NUL", "1:7", "contains a NUL character", job='env: {A: "\\0"}\n'),
    spec("argument without value", "1:8", "args.x: has no value", "hint: write true", job="args: {x: }\n"),
    spec("unknown provider in image", "1:9", "image.gcp: unknown provider", job="image: {gcp: x}\n"),
    spec("machine without a name", "1:24", "resources.instance.aws: is empty", job="resources: {instance: {aws: ''}}\n"),
    spec("machines without a name", "1:24", "resources.instance.aws", "is empty", job="resources: {instance: {aws: [a, ' ']}}\n"),
    spec("Dockerfile of no disk", "1:9", "image.build: the path is too long for any disk", job=f"image: {{build: {'x' * 5000}}}\n"),
    spec("Dockerfile too deep for any disk", "1:9", "image.build: the path is too long", job=f"image: {{build: {'x/' * 5000}}}\n"),
    spec("Dockerfile without a name", "1:9", "image.build: is empty", job="image: {build: ''}\n"),
    spec("number with thousands of digits", "1:13", "resources.nodes: expected a whole number", job=f"resources: {{nodes: 0x{'f' * 5000}}}\n"),
    # inputs that are not a job file
    spec("empty file", "1:1", "is empty", "hint: run cloudtrain init", job=""),
    spec("not YAML", "2:1", "is not YAML: did not find expected", job="a: [1\n"),
    spec("list at the top", "1:1", "expected a mapping (key: value), got a list", job="- a\n"),
    spec("key twice", "2:1", "name: is given twice (first on line 1)", job="name: a\nname: b\n"),
    spec("tab", "2:1", "a tab in the indentation", "hint: replace the tab", job="resources:\n\tnodes: 1\n"),
    spec("two documents", "2:1", "a second document starts here", job="name: a\n---\nname: b\n"),
    spec("not UTF-8", "2:11", "is not UTF-8 text", "hint: save it as UTF-8", job=b"name: a\ntags: {a: \xff}\n"),
    spec("NUL byte", "1:8", "contains the control character U+0000", job="name: a\0b\n"),
    spec("endless alias", "1:7", "(or an endless alias)", job="args: &a [*a]\n"),
    spec("deep nesting", "1:56", "too many or too deeply nested values", job="args: " + "[" * 400_000),
    spec("billion laughs", "1:11", "too many or too deeply nested values", job=LAUGHS),
    spec("python tag", "1:7", "the tag 'tag:yaml.org,2002:python/object/apply:os.system'", job="args: !!python/object/apply:os.system [ls]\n"),
    use("10 MB file", 2, "job.yaml: the file is too large for a spec (limit 1,000,000 bytes)", argv="check", job=BIG),
    use("folder without a job file", 2, "code: is a folder without a job.yaml", "hint: cloudtrain init code", argv="check code", files={"code/": ""}),
    use("no job file", 2, "job.yaml: no such file", "hint: run cloudtrain init", argv="check", job=None),
    # flags, commands, settings
    use("--set without a value", 2, "--set name: expected KEY.PATH=VALUE", "hint: --set resources.nodes=4", argv="check --set name"),
    use("--set of an unknown key", 2, "--set resources.node=2: resources.node: unknown key", argv="check --set resources.node=2"),
    use("--set of a wrong type", 2, "--set resources.nodes=x: resources.nodes: expected", argv="check --set resources.nodes=x"),
    use("--set not UTF-8", 2, "--set args.x: is not UTF-8 text", argv="check --set args.x=\udcff"),
    use("--set of a secret in clear", 2, "--set secrets.HF=…", argv="check --set secrets.HF=hunter2"),
    use("unknown command", 2, "no command 'chekc' (did you mean 'check'?)", argv="chekc"),
    use("unknown option", 2, "--nope", argv="check --nope"),
    use("unknown provider", 2, "unknown provider 'gcp'", "hint: one of: ", argv="check --provider gcp"),
    use("provider of 300 letters", 2, "unknown provider 'ppp", argv=f"check --provider {'p' * 300}"),
    use("diff against 300 letters", 2, "there is no run 'rrr", argv=f"plan --diff {'r' * 300}"),
    use("unknown state", 2, "'bogus' is not one of 'submitting'", argv="list --state bogus"),
    use("trainer's argument", 2, "job.yaml:1:8: args.epochs: the shared trainer says: argument --epochs: expected a whole number of 1 or more, got 'two'", argv="check", job="args: {epochs: two}\n"),
    use("run id that is taken by a word", 2, "'last' always means the last run", argv="submit --run-id last"),
    use("no time to stop in", 2, "2 s is too short for a checkpoint", argv="check", env={"CLOUDTRAIN_STOP_GRACE": "2 s"}),
    use("provider that is a path", 2, "unknown provider '../x'", argv="check --provider ../x"),
    use("bad run id", 2, "'-x-' is not a valid run id", "hint: up to 63", argv="submit --run-id=-x-"),
    use("broken cloudtrain.toml", 2, "cloudtrain.toml:1:5: is not TOML", argv="check", files={"cloudtrain.toml": "a = = 1\n"}),
    use("unknown setting", 2, "cloudtrain.toml:1: provder: unknown setting (did you mean 'provider'?)", argv="check", files={"cloudtrain.toml": "provder = 'x'\n"}),
    use("setting of a wrong type", 2, "cloudtrain.toml:1: stop_grace: expected text, got 5", argv="check", files={"cloudtrain.toml": "stop_grace = 5\n"}),
    use("setting of a bad unit", 2, "environment CLOUDTRAIN_STOP_GRACE: stop_grace: cannot read '5'", argv="check", env={"CLOUDTRAIN_STOP_GRACE": "5"}),
    use("setting of thousands of digits", 2, "cloudtrain.toml: contains a number with too many digits", argv="check", files={"cloudtrain.toml": f"stop_grace = {'9' * 5000}\n"}),
    use("setting of thousands of hexadecimal digits", 2, "cloudtrain.toml:1: stop_grace: expected text", argv="check", files={"cloudtrain.toml": f"stop_grace = 0x{'f' * 5000}\n"}),
    use("setting beyond all numbers", 2, "expected 0.05 to 3600 seconds, got 999", argv="check", files={"cloudtrain.toml": f"[aws]\npoll = {'9' * 400}\n"}),
    use("NUL in a setting", 2, "cloudtrain.toml:1: data_dir: contains a NUL character", argv="check", files={"cloudtrain.toml": 'data_dir = "a\\u0000b"\n'}),
    use("data folder of no disk", 2, "data_dir: the path is too long for any disk", argv="list", env={"CLOUDTRAIN_DATA_DIR": "/" + "d" * 300}),
    use("data folder too deep for any disk", 2, "data_dir: the path is too long for any disk", argv="check", env={"CLOUDTRAIN_DATA_DIR": "/d" * 3000}),
    use("folder to write to that cannot be", 4, "File name too long", argv="init " + "d" * 300),
    use("folder to fetch to that cannot be", 4, "File name too long", argv="fetch digits-aaaa " + "d" * 300),
    # hints for common mistakes
    spec("bare args", "1:1", "args: is empty", "hint: remove args, or add values: args: {epochs: 3}", job="args:\n"),
    spec("bare env", "1:1", "env: expected a mapping (NAME: value), got nothing", "hint: remove the key, or add values below it", job="env:\n"),
    spec("bare resources", "1:1", "resources: expected a mapping, got nothing", "hint: remove the key", job="resources:\n"),
    spec("merge key", "2:8", "args: << is not part of YAML 1.2", "hint: write the values here", job="env: &e {A: x}\nargs: {<<: *e}\n"),
    spec("field of the other cloud", "1:7", "aws.workspace: unknown key", "hint: this is a field of azure: azure.workspace", job="aws: {workspace: w}\n"),
    spec("UTF-16", "1:1", "is not UTF-8 text", "iconv -f UTF-16 -t UTF-8 job.yaml", job="name: a\n".encode("utf-16")),
    # all at once
    use("--set and a mistake in the file", 2, "job.yaml:1:1: nmae: unknown key", "--set name: expected KEY.PATH=VALUE", "inputs.a: no such file or folder: ./data", argv="check --set name", job="nmae: x\ninputs: {a: ./data}\n"),
    use("several bad --set", 2, "--set name: expected KEY.PATH=VALUE", "--set resources.nodes=x: resources.nodes: expected", argv="check --set name --set resources.nodes=x"),
    use("--set and a missing input", 2, "--set args.a.b=1: args: is a list", "job.yaml:2:10: inputs.a: no such file or folder: ./data", argv="check --set args.a.b=1", job="args: [x]\ninputs: {a: ./data}\n"),
    # programs and packages
    spec("script that is not Python", "1:1", "entrypoint: train.py:2: is not Python: invalid syntax", job="entrypoint: train.py\n", train_py="import os\necho hi | cat\n"),
    spec("script with a NUL", "1:1", "entrypoint: train.py: is not Python: source code", job="entrypoint: train.py\n", train_py="a = 1\0\n"),
    spec("notebook that is not JSON", "1:1", "entrypoint: x.ipynb:1: is not a notebook: it is not JSON", job="entrypoint: x.ipynb\n", **{"x.ipynb": "{"}),
    spec("notebook without cells", "1:1", "entrypoint: x.ipynb: is not a notebook: it has no list of cells", job="entrypoint: x.ipynb\n", **{"x.ipynb": "{}"}),
    spec("notebook nested deeply", "1:1", "entrypoint: x.ipynb: is not a notebook: it is nested too deeply", job="entrypoint: x.ipynb\n", **{"x.ipynb": "[" * 100_000}),
    spec("backend of MPI", "1:8", "args.backend: mpi needs ranks that mpirun starts", "hint: leave it out", job="args: {backend: mpi}\n"),
    spec("backend of MPI in a list", "1:20", "args[1]: mpi needs ranks", job="args: [--epochs=1, --backend=mpi]\n"),
    use("pyproject nested deeply", 2, "pyproject.toml is nested too deeply", argv="check", files={"pyproject.toml": "x = " + "[" * 100_000}),
    use("pyproject with an empty requirement", 2, "pyproject.toml: project.dependencies holds an empty text", argv="check", files={"pyproject.toml": '[project]\ndependencies = ["numpy", ""]\n'}),
    use("requirement with a NUL", 2, "requirements.txt:1: embedded null byte", argv="check", files={"requirements.txt": "./a\0b\n"}),
    use("lock file of another form", 2, "uv.lock does not have the form of a uv.lock", argv="check", files={"uv.lock": "version = 1\npackage = 3\n"}),
    # what this machine lacks
    use("local input missing", 3, "job.yaml:1:10: inputs.a: no such file or folder", argv="check", job="inputs: {a: ./data}\n"),
    use("local input empty", 3, "job.yaml:1:10: inputs.a: ", "data is empty: the job would run on nothing", argv="check", job="inputs: {a: ./data}\n", files={"data/": ""}),
    use("secret not set", 3, "environment variable HF_UNSET is not set", "hint: export HF_UNSET=", argv="check", job="secrets: {HF: {local: env:HF_UNSET}}\n"),
    use("no such GPUs", 3, "the spec asks for 64 per node", "hint: to rehearse on the CPU: --set resources.gpus=0", argv="check", job="resources: {gpus: 64}\n"),
    use("no torch", 3, "torch is not installed for /bin/false", "CLOUDTRAIN_PYTHON", argv="check", env={"CLOUDTRAIN_PYTHON": "/bin/false"}),
    use("no such Python", 3, "/no/python cannot be run", argv="check", env={"CLOUDTRAIN_PYTHON": "/no/python"}),
    use("data folder below a file", 4, "Not a directory", argv="--data-dir file/x submit", files={"file": ""}),
    use("runs listed below a file", 4, "Not a directory", "hint: set CLOUDTRAIN_DATA_DIR", argv="--data-dir file/x list", files={"file": ""}),
    # runs: digits-aaaa and digits-aabb are there, both have ended
    use("unknown run", 2, "there is no run 'digits-aaxx' (did you mean", "hint: cloudtrain list", argv="status digits-aaxx"),
    use("ambiguous run", 2, "'digits-aa' fits 2 runs: digits-aaaa, digits-aabb", "hint: give more letters", argv="status digits-aa"),
    use("no run at all", 2, "there are no runs in", argv="--data-dir empty status last"),
    use("bad --grep", 2, "'(' is not a valid regular expression", argv="logs digits-aaaa --grep ("),
    use("bad --since", 2, "--since 'soon' is neither a duration nor a time", "hint: a duration such as", argv="logs digits-aaaa --since soon"),
    use("bad --rank", 2, "--rank", argv="logs digits-aaaa --rank -1"),
    use("bad --timeout", 2, "--timeout: cannot read 'soon' as a duration", argv="wait digits-aaaa --timeout soon"),
    use("fetch into a full folder", 2, "full exists and is not empty", "hint: --force replaces model", "cloudtrain fetch digits-aaaa", argv="fetch digits-aaaa full", files={"full/a": ""}),
    use("fetch of nothing", 4, "run digits-aaaa left no files", argv="fetch digits-aaaa"),
    use("init over a job", 2, "job.yaml exists already; no file was written", "hint: cloudtrain init", argv="init"),
    use("diff against what is no JSON", 2, "a.txt: is not JSON", argv="plan --diff a.txt", files={"a.txt": "x"}),
]  # fmt: skip
