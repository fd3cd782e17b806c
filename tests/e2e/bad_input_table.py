"""The table of bad input: the input, the exit code, and the field with a key word. One row each."""

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


def spec(
    id: str, at: str, shown: str, job: str | bytes, files: Mapping[str, str] | None = None
) -> Row:
    """Return a mistake in job.yaml: its place, and its field with a key word."""
    return Row(id, 2, (f"job.yaml:{at}: ", shown), job, ("check",), files or {})


def use(
    id: str, code: int, *shown: str, argv: str, job: str | None = "{}\n", **more: Mapping[str, str]
) -> Row:
    """Return any other mistake, by the words of the command."""
    return Row(id, code, shown, job, tuple(argv.split(" ")), **more)


ROWS = [
    spec("unknown key", "1:1", "nmae: unknown key", "nmae: x\n"),
    spec("unknown key inside", "2:3", "resources.node: unknown key", "resources:\n  node: 2\n"),
    spec("wrong type", "1:13", "resources.nodes: expected a", "resources: {nodes: two}\n"),
    spec("text for a switch", "1:13", "resources.spot: expected true", "resources: {spot: yes}\n"),
    spec("bad unit", "1:10", "cannot read '6 hodr' as", "limits: {max_runtime: 6 hodr}\n"),
    spec("bare number", "1:10", "max_runtime: 6 has", "limits: {max_runtime: 6}\n"),
    spec("negative count", "1:13", "resources.nodes: must be", "resources: {nodes: -1}\n"),
    spec("too many nodes", "1:13", "500 nodes exceed the limit", "resources: {nodes: 500}\n"),
    spec("gpu and instance", "1:33", "instance: conflicts with", "resources: {gpus: 8, gpu: H100, instance: {aws: x}}\n"),
    spec("unknown GPU", "1:22", "unknown GPU 'A100-80' (did you", "resources: {gpus: 8, gpu: A100-80}\n"),
    spec("GPU model, no count", "1:13", "names a GPU model without", "resources: {gpu: H100}\n"),
    spec("bad job name", "1:1", "'my job' is not a", "name: my job\n"),
    spec("name only of a hyphen", "1:1", "'-' is not a valid", "name: '-'\n"),
    spec("entrypoint missing", "1:1", "no such file in the", "entrypoint: trian.py\n", {"train.py": ""}),
    spec("entrypoint with arguments", "1:1", "entrypoint: contains arguments", "entrypoint: train.py --lr 3\n", {"train.py": ""}),
    spec("entrypoint of python", "1:1", "starts with 'python', but torchrun", "entrypoint: python train.py --x 1\n", {"train.py": ""}),
    spec("entrypoint of torchrun", "1:1", "starts with 'torchrun'", "entrypoint: torchrun --nnodes=2 --nproc_per_node 4 -m a.b --x 1\n"),
    spec("entrypoint of a launcher alone", "1:1", "starts with 'bash'", "entrypoint: bash run.sh\n"),
    spec("option of the trainer", "1:24", "args.epocsh: the shared", "args: {strategy: fsdq, epocsh: 3}\n"),
    spec("entrypoint outside", "1:1", "'../x.py' is outside the source", "entrypoint: ../x.py\n"),
    spec("entrypoint is no program", "1:1", "'a.txt' is not a .py", "entrypoint: a.txt\n", {"a.txt": ""}),
    spec("module missing", "1:1", "no module pkg.train in the", "entrypoint: -m pkg.train\n", {"pkg/": ""}),
    spec("module with arguments", "1:1", "contains arguments", "entrypoint: -m a b\n"),
    spec("source missing", "1:1", "source: no such", "source: code\n"),
    spec("source is a file", "1:1", "source: is a", "source: train.py\n", {"train.py": ""}),
    spec("s3 on local", "1:10", "s3://b/x cannot be read by", "inputs: {a: s3://b/x}\n"),
    spec("input nowhere here", "1:10", "inputs.a: has no", "inputs: {a: {aws: s3://b/x}}\n"),
    spec("input of nobody", "1:10", "unknown user: '~nobody-here/x'", "inputs: {a: ~nobody-here/x}\n"),
    spec("input name", "1:10", "inputs.1a: is not", "inputs: {1a: ./x}\n"),
    spec("inputs share a variable", "1:20", "inputs.a_b: shares the", "inputs: {a-b: ./x, a_b: ./y}\n"),
    spec("secret nowhere here", "1:11", "secrets.HF: has no", "secrets: {HF: {aws: ssm:hf}}\n"),
    spec("secret in clear", "1:11", "", "secrets: {HF: hunter2}\n"),
    spec("secret and env", "2:11", "secrets.A: is also", "env: {A: x}\nsecrets: {A: {local: env:A}}\n"),
    spec("env name", "1:7", "env.1A: is not", "env: {1A: x}\n"),
    spec("env name reserved", "1:7", "env.CLOUDTRAIN_X: is reserved:", "env: {CLOUDTRAIN_X: x}\n"),
    spec("argument without value", "1:8", "args.x: has no", "args: {x: }\n"),
    spec("unknown provider in image", "1:9", "image.gcp: unknown provider", "image: {gcp: x}\n"),
    spec("machine without a name", "1:24", "resources.instance.aws: is empty", "resources: {instance: {aws: ''}}\n"),
    spec("Dockerfile of no disk", "1:9", "image.build: the path", f"image: {{build: {'x' * 5000}}}\n"),
    spec("number with thousands of digits", "1:13", "resources.nodes: expected a", f"resources: {{nodes: 0x{'f' * 5000}}}\n"),
    spec("empty file", "1:1", "is empty", ""),
    spec("list at the top", "1:1", "expected a mapping (key: value),", "- a\n"),
    spec("key twice", "2:1", "name: is given", "name: a\nname: b\n"),
    spec("tab", "2:1", "a tab in the indentation", "resources:\n\tnodes: 1\n"),
    spec("two documents", "2:1", "a second document starts here", "name: a\n---\nname: b\n"),
    spec("not UTF-8", "2:11", "is not UTF-8 text", b"name: a\ntags: {a: \xff}\n"),
    spec("NUL byte", "1:8", "contains the control character U+0000", "name: a\0b\n"),
    spec("endless alias", "1:7", "(or an endless alias)", "args: &a [*a]\n"),
    spec("deep nesting", "1:56", "too many or too deeply", "args: " + "[" * 400_000),
    spec("billion laughs", "1:11", "too many or too deeply", LAUGHS),
    spec("python tag", "1:7", "the tag 'tag:yaml.org,2002:python/object/apply:os.system'", "args: !!python/object/apply:os.system [ls]\n"),
    use("10 MB file", 2, "job.yaml: the file is too", argv="check", job=BIG),
    use("folder without a job file", 2, "code: is a", argv="check code", files={"code/": ""}),
    use("no job file", 2, "job.yaml: no such file", argv="check", job=None),
    use("--set without a value", 2, "--set name: expected KEY.PATH=VALUE", argv="check --set name"),
    use("--set of an unknown key", 2, "--set resources.node=2: resources.node: unknown key", argv="check --set resources.node=2"),
    use("--set not UTF-8", 2, "--set args.x: is not UTF-8", argv="check --set args.x=\udcff"),
    use("--set of a secret in clear", 2, "--set secrets.HF=…", argv="check --set secrets.HF=hunter2"),
    use("unknown command", 2, "no command 'chekc' (did you", argv="chekc"),
    use("unknown option", 2, "--nope", argv="check --nope"),
    use("unknown provider", 2, "unknown provider 'gcp'", argv="check --provider gcp"),
    use("unknown state", 2, "'bogus' is not one of", argv="list --state bogus"),
    use("run id that is taken by a word", 2, "'last' always means the last", argv="submit --run-id last"),
    use("no time to stop in", 2, "2 s is too short", argv="check", env={"CLOUDTRAIN_STOP_GRACE": "2 s"}),
    use("bad run id", 2, "'-x-' is not a valid", argv="submit --run-id=-x-"),
    use("broken cloudtrain.toml", 2, "cloudtrain.toml:1:5: is not TOML", argv="check", files={"cloudtrain.toml": "a = = 1\n"}),
    use("unknown setting", 2, "cloudtrain.toml:1: provder: unknown setting (did", argv="check", files={"cloudtrain.toml": "provder = 'x'\n"}),
    use("setting of a wrong type", 2, "cloudtrain.toml:1: stop_grace: expected text, got", argv="check", files={"cloudtrain.toml": "stop_grace = 5\n"}),
    use("setting of a bad unit", 2, "environment CLOUDTRAIN_STOP_GRACE: stop_grace: cannot read", argv="check", env={"CLOUDTRAIN_STOP_GRACE": "5"}),
    use("data folder of no disk", 2, "data_dir: the path", argv="list", env={"CLOUDTRAIN_DATA_DIR": "/" + "d" * 300}),
    use("folder to write to that cannot be", 4, "File name too long", argv="init " + "d" * 300),
    spec("bare args", "1:1", "args: is empty", "args:\n"),
    spec("merge key", "2:8", "args: << is", "env: &e {A: x}\nargs: {<<: *e}\n"),
    spec("field of the other cloud", "1:7", "aws.workspace: unknown key", "aws: {workspace: w}\n"),
    use("--set and a mistake in the file", 2, "job.yaml:1:1: nmae: unknown key", "--set name: expected KEY.PATH=VALUE", "inputs.a: no such", argv="check --set name", job="nmae: x\ninputs: {a: ./data}\n"),
    spec("script that is not Python", "1:1", "entrypoint: train.py:2: is", "entrypoint: train.py\n", {"train.py": "import os\necho hi | cat\n"}),
    spec("script with a NUL", "1:1", "entrypoint: train.py: is", "entrypoint: train.py\n", {"train.py": "a = 1\0\n"}),
    spec("notebook that is not JSON", "1:1", "entrypoint: x.ipynb:1: is", "entrypoint: x.ipynb\n", {"x.ipynb": "{"}),
    spec("notebook nested deeply", "1:1", "entrypoint: x.ipynb: is", "entrypoint: x.ipynb\n", {"x.ipynb": "[" * 100_000}),
    use("pyproject nested deeply", 2, "pyproject.toml is nested too deeply", argv="check", files={"pyproject.toml": "x = " + "[" * 100_000}),
    use("pyproject with an empty requirement", 2, "pyproject.toml: project.dependencies holds", argv="check", files={"pyproject.toml": '[project]\ndependencies = ["numpy", ""]\n'}),
    use("requirement with a NUL", 2, "requirements.txt:1: embedded null byte", argv="check", files={"requirements.txt": "./a\0b\n"}),
    use("lock file of another form", 2, "uv.lock does not have the", argv="check", files={"uv.lock": "version = 1\npackage = 3\n"}),
    use("local input missing", 3, "job.yaml:1:10: inputs.a: no such file", argv="check", job="inputs: {a: ./data}\n"),
    use("local input empty", 3, "job.yaml:1:10: inputs.a: ", argv="check", job="inputs: {a: ./data}\n", files={"data/": ""}),
    use("secret not set", 3, "environment variable HF_UNSET is not", argv="check", job="secrets: {HF: {local: env:HF_UNSET}}\n"),
    use("no such GPUs", 3, "the spec asks for 64", argv="check", job="resources: {gpus: 64}\n"),
    use("no torch", 3, "torch is not installed for", argv="check", env={"CLOUDTRAIN_PYTHON": "/bin/false"}),
    use("no such Python", 3, "/no/python cannot be run", argv="check", env={"CLOUDTRAIN_PYTHON": "/no/python"}),
    use("data folder below a file", 4, "Not a directory", argv="--data-dir file/x submit", files={"file": ""}),
    use("unknown run", 2, "there is no run 'digits-aaxx'", argv="status digits-aaxx"),
    use("ambiguous run", 2, "'digits-aa' fits 2 runs: digits-aaaa,", argv="status digits-aa"),
    use("bad --grep", 2, "'(' is not a valid", argv="logs digits-aaaa --grep ("),
    use("bad --since", 2, "--since 'soon' is neither a", argv="logs digits-aaaa --since soon"),
    use("bad --timeout", 2, "--timeout: cannot read", argv="wait digits-aaaa --timeout soon"),
    use("fetch into a full folder", 2, "full exists and is not", argv="fetch digits-aaaa full", files={"full/a": ""}),
    use("fetch of nothing", 4, "run digits-aaaa left no files", argv="fetch digits-aaaa"),
    use("diff against what is no JSON", 2, "a.txt: is not", argv="plan --diff a.txt", files={"a.txt": "x"}),
]  # fmt: skip
