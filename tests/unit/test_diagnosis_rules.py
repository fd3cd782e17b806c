"""Every rule of the diagnosis: its example, public reports, and programs that really fail; and log
files as they come: packed, in other encodings, as JSON, torn, or binary.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from cloudtrain.diagnosis import log_text
from cloudtrain.diagnosis.failure import Diagnosis, diagnose_lines
from cloudtrain.diagnosis.log_text import MAX_CHARS, read_log
from cloudtrain.diagnosis.rule import Rule
from cloudtrain.diagnosis.rules import RULES
from tests.support.failure_reports import (
    ENDINGS,
    NOISE,
    healthy_logs,
    is_told_to_have_failed,
    judge,
    reports,
    right_reports,
    with_noise,
)
from tests.support.failure_reports import diagnosed as diagnosed_lines
from tests.support.waiting import HANG_SECONDS

DATA = Path(__file__).parents[1] / "data"
EXAMPLES = dict(
    line.split(" ", 1) for line in (DATA / "rule_examples.txt").read_text().splitlines()[1:]
)
HEALTHY = (DATA / "healthy_lines.txt").read_text().splitlines()[1:]


def diagnosed(*lines: str) -> Diagnosis:
    return diagnosed_lines(lines)


def name_of(rule: Rule | None) -> str:
    return rule.name if rule else "none"


def test_every_rule_has_an_example_that_it_diagnoses() -> None:
    assert len(RULES) >= 60
    assert sorted(EXAMPLES) == sorted(rule.name for rule in RULES)
    rules = {name: name_of(diagnosed(line).rule) for name, line in EXAMPLES.items()}
    assert {name: rule for name, rule in rules.items() if rule != name} == {}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_says_what_happened_what_to_do_and_where_that_is_written(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name)
    remedy = rule.remedy_for(EXAMPLES[rule.name])
    for sentence in (rule.cause, remedy):
        assert 10 < len(sentence) < 260
        assert not sentence.endswith("."), "it is a part of a line"
    assert rule.restart in ("retry", "never", "after a change")
    assert rule.source.startswith("https://") or (Path(__file__).parents[2] / rule.source).is_file()


def test_public_reports_are_diagnosed_as_their_threads_say() -> None:
    public = reports("public_failures.txt")
    assert len({report.labels for report in public}) >= 60
    assert len(right_reports("public_failures.txt")) >= 0.98 * len(public)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", NOISE)
def test_harmless_lines_in_front_of_a_report_change_little(kind: str, training: bool) -> None:
    sample = right_reports("public_failures.txt")[list(NOISE).index(kind) % 3 :: 3]
    diagnoses = [diagnosed(*with_noise(report, kind, training=training)) for report in sample]
    outcomes = list(map(judge, sample, diagnoses))
    assert sum(outcome.is_right for outcome in outcomes) >= 0.97 * len(sample)


@pytest.mark.parametrize("kind", ENDINGS)
def test_lines_behind_a_report_change_little(kind: str) -> None:
    sample = right_reports("public_failures.txt")[list(ENDINGS).index(kind) % 3 :: 3]
    unchanged = 0
    for report in sample:
        before = diagnosed(*report.lines)
        after = diagnosed(*report.lines, *ENDINGS[kind])
        unchanged += (before.rule, before.headline) == (after.rule, after.headline)
    assert unchanged >= 0.94 * len(sample)


def test_reports_held_back_are_mostly_right_and_seldom_misleading() -> None:
    held_back = reports("public_failures_held_back.txt")
    outcomes = [judge(report, diagnosed(*report.lines)) for report in held_back]
    assert len(outcomes) == 100
    assert sum(outcome.is_right for outcome in outcomes) >= 92
    assert sum(outcome.is_wrong_remedy for outcome in outcomes) <= 3


def test_reports_of_a_random_draw_are_diagnosed() -> None:
    drawn = reports("public_failures_drawn.txt")
    assert len(drawn) == len(right_reports("public_failures_drawn.txt")) == 25


@pytest.mark.parametrize("name", healthy_logs())
def test_a_healthy_log_is_not_told_to_have_failed(name: str) -> None:
    assert not is_told_to_have_failed(diagnosed(*healthy_logs()[name]))


@pytest.mark.parametrize(
    "line", ["Killed", "bash: line 1:  7 Killed                  python train.py", "exitcode: -9"]
)
def test_a_killed_process_alone_is_not_called_out_of_memory(line: str) -> None:
    diagnosis = diagnosed("step 7  loss 0.25", line)
    assert (name_of(diagnosis.rule), diagnosis.confidence) == ("killed", "low")
    assert "if it was full" in diagnosis.remedy, (
        "the remedy says how to find out, and assumes nothing"
    )


@pytest.mark.parametrize("at", [0, 1])
def test_a_time_out_of_nccl_is_never_the_cause_while_anything_else_is_known(at: int) -> None:
    lines = [EXAMPLES["collective-timeout"]]
    lines.insert(at, EXAMPLES["disk-full"])
    diagnosis = diagnosed(*lines)
    assert name_of(diagnosis.rule) == "disk-full"
    assert [consequence.rule.name for consequence in diagnosis.consequences] == [
        "collective-timeout"
    ]


def test_broken_hardware_counts_before_the_error_that_shows_it() -> None:
    hardware = "NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus."
    steps = [f"step {step} loss 0.5" for step in range(9)]
    diagnosis = diagnosed(hardware, *steps, EXAMPLES["gpu-launch-failure"])
    assert name_of(diagnosis.rule) == "gpu-lost"


def test_what_a_healthy_run_prints_is_taken_for_no_failure() -> None:
    rules = {line: name_of(diagnosed(line).rule) for line in HEALTHY}
    assert {line: name for line, name in rules.items() if name != "none"} == {}
    assert name_of(diagnosed(*HEALTHY).rule) == "none"
    assert name_of(diagnosed(*HEALTHY, EXAMPLES["settings-refused"]).rule) == "settings-refused"


def test_what_is_unknown_comes_with_the_last_lines_that_look_like_errors() -> None:
    diagnosis = diagnosed("ERROR: the flux compensator has failed", "bye")
    assert (diagnosis.rule, diagnosis.cause) == (None, "ERROR: the flux compensator has failed")


PREFIXES = {
    "[rank3]: ": 3,
    "[rank3]:": 3,
    "[default3]:": 3,
    "[3]: ": 3,
    "[1,3]<stderr>: ": 3,
    "3: ": 3,
    "[1,mpirank:3,algo-1]<stderr>:": 3,
    "2026-11-21T02:04:34.447123456Z stderr F ": None,
    "stderr: [rank3]: ": 3,
    "worker-1: ": None,
    "10.0.0.7: [rank3]: ": 3,
    "| 1584806925675 | ": None,
    "#033[34m": None,
    "?[31m": None,
    "2026-11-21T02:04:34.447Z [rank 3] ": 3,
    "algo-1-abcd | ": None,
    "[2026-11-21 02:04:34,447] ": None,
    "(RayTrainWorker pid=933, ip=10.0.0.7) ": None,
    "\x1b[36m(Worker pid=4009)\x1b[0m [rank3]: ": 3,
    " 10%|###       | 1/10 [00:01<00:09]\r": None,
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_marks_of_ranks_times_and_colours_in_front_of_a_line_are_understood(prefix: str) -> None:
    diagnosis = diagnosed(f"{prefix}\x1b[31mMemoryError\x1b[0m")
    assert name_of(diagnosis.rule) == "host-allocation-failed"
    assert (diagnosis.evidence[0].text, diagnosis.evidence[0].rank) == (
        "MemoryError",
        PREFIXES[prefix],
    )


def test_no_line_takes_long_however_hostile_it_is() -> None:
    lines = [
        f"error {part * (MAX_CHARS // len(part))}"
        for part in ("(", "ibv_", "StreamAccess", "a b", "exceed quota ")
    ]
    began = time.process_time()
    diagnosed(*lines)
    diagnosed(f"OSError: No space left on device {'/a' * (MAX_CHARS // 2)}")
    assert time.process_time() - began < 2


def test_a_warning_counts_less_than_an_error_and_a_remedy_names_what_was_said() -> None:
    diagnosis = diagnosed(f"UserWarning: {EXAMPLES['driver-too-old']}", EXAMPLES["disk-full"])
    assert name_of(diagnosis.rule) == "disk-full"
    quota = diagnosed(EXAMPLES["sagemaker-quota"])
    assert "ml.p4d.24xlarge for training job usage" in quota.remedy
    out_of_memory = EXAMPLES["gpu-out-of-memory"] + " Process 7 has 11.50 GiB memory in use."
    assert diagnosed(out_of_memory).remedy.startswith("another process holds 11.50 GiB")


REMEDIES = {
    'Error(s) in loading state_dict: Missing key(s): "l.weight". Unexpected key(s): "module.l.weight"': (
        "strip 'module.'"
    ),
    'Error(s) in loading state_dict: Missing key(s): "module.l.weight". Unexpected key(s): "l.w"': (
        "into model.module"
    ),
    "ValueError: device_ids can only be None or contain a single element.": "[local_rank]",
    "RuntimeError: Distributed package doesn't have MPI built in": "gloo on CPUs",
    "RuntimeError: Distributed package doesn't have NCCL built in": "gloo on CPUs",
    "DistNetworkError: server socket: port 29500, EADDRINUSE": "if the program sets the port",
    "OSError: [Errno 98] Address already in use": "free port (0)",
    "ValueError: Expected more than 1 value per channel when training": "drop_last=True",
    "ModuleNotFoundError: No module named 'distutils'": "setuptools",
    "ModuleNotFoundError: No module named 'torch._six'": "pin the package",
    "train.sh: 1: srun: not found": "install its package in the image",
    "RuntimeError: Cannot re-initialize CUDA in forked subprocess": "spawn",
    "slurmstepd: error: execve(): torchrun: No such file or directory": "torch.distributed.run",
    "Rank 3 crashed with exit code -7": "resources.shm",
    "Bus error (core dumped)": "mapped file",
    "RuntimeError: CUDA error: an illegal instruction was encountered": "another machine",
    "RuntimeError: operator torchvision::nms does not exist": "one is +cpu and the other for CUDA",
    "slurmstepd: error: *** JOB 4 ON n1 CANCELLED AT 2026-11-21T02:04:34 DUE TO TIME LIMIT ***": "sbatch",
    "RuntimeError: No CUDA GPUs are available": "machine that has GPUs",
    "RuntimeError: No HIP GPUs are available": "/dev/kfd",
    "torch.AcceleratorError: HIP error: unspecified launch failure": "AMD_SERIALIZE_KERNEL",
    "ImportError: libcuda.so.1: cannot open shared object file: No such file": "no package does",
    "OSError: libcuda.so: cannot open shared object file: No such file": "NVIDIA's driver",
    "run.sh: line 3: mpirun: command not found": "openmpi-bin",
    "FileNotFoundError: [Errno 2] No such file or directory: 'mpirun'": "openmpi-bin",
    "ERROR: Could not open requirements file: [Errno 2] No such file: 'r.txt'": "correct the path",
    "ERROR: No matching distribution found for torch==2.0.1+cu118": "+cu118 are on PyTorch's own",
    "CalledProcessError: Command '['pip', 'install', '-r', 'r.txt']' returned": "pip's own lines",
    "*** An error occurred in MPI_Init_thread": "--mpi=pmix",
    "ClientError: User: arn:aws:iam::1:user/ann is not authorized to perform: s3:GetObject on x": (
        "allow s3:GetObject to arn:aws:iam::1:user/ann"
    ),
    "NameError: name 'get_ipython' is not defined": "comes from a notebook",
    "ModuleNotFoundError: No module named 'IPython'": "comes from a notebook",
    "ImportError: attempted relative import with no known parent package": "-m package.module",
    "ImportError: you need flash_attn version to be at least 2.1.0. Detected version 2.0.4.": "==version",
    "ray.exceptions.RayActorError: The actor died unexpectedly": "session_latest/logs",
    "ImportError: the package flash_attn seems to be not installed": "sdpa",
    "ModuleNotFoundError: No module named 'src.models'": "must be in the source folder",
    "RuntimeError: NCCL version mismatch between ranks": "the same image on all nodes",
    "OSError: [Errno 30] Read-only file system: '/x'": "CLOUDTRAIN_OUTPUT_DIR",
    "RuntimeError: params[0] in this process with sizes [4] appears not to match": "same arguments",
    "AttributeError: 'DistributedDataParallel' object has no attribute 'x'": "model.module",
    "pull access denied for train": "AcrPull",
    "ibv_reg_mr failed with Cannot allocate memory": "memlock",
    "An error occurred (NoSuchBucket) when calling": "the job's own region",
    "Reason: Evicted": "kubectl describe",
    "exitcode  : 2 (pid: 4)": "refused arguments",
    "[INFO] train.sh: line 1: accelerate: command not found": "accelerate.commands.launch",
    "IndexError: index 21 is out of bounds for axis 0 with size 21": "number of classes",
    "IndexError: index 1 is out of bounds for axis 0 with size 1": "shape of a batch",
    "AssertionError: no_sync is incompatible with ZeRO stage 2": "in the configuration",
    "TypeError: expected str, bytes or os.PathLike object, not NoneType": "is None",
    "OSError: [E050] Can't find model 'en_core_web_sm'.": "of the hub",
    "Docker container `1-execution-wrapper` failed with status code": "support of Azure",
}


@pytest.mark.parametrize("line", REMEDIES)
def test_the_remedy_fits_the_message(line: str) -> None:
    assert REMEDIES[line] in diagnosed(line).remedy


CONFIDENCES = {
    "RuntimeError: DataLoader worker (pid 3) is killed by signal: Bus error.": "high",
    "Bus error (core dumped)": "low",
    "RuntimeError: No CUDA GPUs are available": "high",
    "RuntimeError: Unexpected error from cudaGetDeviceCount()": "low",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory": "low",
    "TypeError: Trainer.__init__() got an unexpected keyword argument 'processing_class'": "low",
    "WARNING: Found no NVIDIA driver on your system": "low",
    "ValueError: the dog ate shard 3": "none",
}


@pytest.mark.parametrize("line", CONFIDENCES)
def test_the_confidence_is_high_only_where_a_line_has_no_other_cause(line: str) -> None:
    assert diagnosed(line).confidence == CONFIDENCES[line]


def test_a_network_plugin_without_its_hardware_is_no_failure() -> None:
    warning = "n1:7:7 [0] NCCL WARN NET/OFI Failed to initialize: No eligible providers were found"
    assert name_of(diagnosed(warning, "KeyError: 'k'").rule) == "none"
    failed = "n1:7:7 [0] NCCL WARN NET/OFI Request 0x7 completed with error. RC: 21"
    assert name_of(diagnosed(failed).rule) == "fabric-error"


OWN_FRAME = '  File "/app/data.py", line 12, in read\n    return config["size"]'
LONG_FRAME = f'  File "/app/data.py", line 12, in read\n    return {"x" * 99}'
PACKAGES = """  File "/x/site-packages/transformers/trainer.py", line 7, in train
  File "/x/site-packages/torch/optim/adam.py", line 9, in step"""
LOADER = '  File "/x/site-packages/torch/utils/data/_utils/worker.py", line 8, in _worker_loop'

PLACES = {
    (OWN_FRAME, "ValueError: seven is odd"): (
        'your code (/app/data.py:12) stopped at `return config["size"]`; compare its values'
    ),
    (LONG_FRAME, "ValueError: seven is odd"): f"stopped at `return {'x' * 72}…`; compare",
    (OWN_FRAME, "KeyError: 'size'"): "there is no 'size' in what it reads",
    (f"{OWN_FRAME}\n{PACKAGES}", "TypeError: seven is odd"): (
        "transformers does not fit torch; update both"
    ),
    (f"{OWN_FRAME}\n{PACKAGES}", "ValueError: seven is odd"): (
        "your code (/app/data.py:12) called torch/optim/adam.py:9; compare"
    ),
    (LOADER, "ValueError: seven is odd"): "look at the key or file of the data",
    (OWN_FRAME, "AssertionError"): "it has no message: print the values",
    ("", "AttributeError: 'NoneType' object has no attribute 'to'"): "a value there is None",
    ("", "AttributeError: 'Namespace' object has no attribute 'config'"): "do not define 'config'",
    ("", "UnboundLocalError: local variable 'rate' referenced before"): "nothing has set 'rate'",
    ("", "RuntimeError: non-default argument follows (X.py, line 6)"): "does not compile",
}


def test_a_program_that_python_cannot_start_is_missing() -> None:
    frames = '  File "/usr/lib/python3.12/subprocess.py", line 1955, in _execute_child'
    exception = "FileNotFoundError: [Errno 2] No such file or directory: 'sbatch'"
    diagnosis = diagnosed("Traceback (most recent call last):", frames, exception)
    assert name_of(diagnosis.rule) == "command-not-found"


@pytest.mark.parametrize(("frames", "exception"), PLACES)
def test_an_unknown_exception_has_a_remedy_by_its_place(frames: str, exception: str) -> None:
    lines = ["Traceback (most recent call last):", *frames.split("\n"), exception]
    diagnosis = diagnosed(*(lines if frames else [exception]))
    assert (diagnosis.rule, diagnosis.confidence) == (None, "none")
    assert PLACES[frames, exception] in diagnosis.remedy


MOUNT_SMALL_DISK = """
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS = 0x00020000
if libc.unshare(CLONE_NEWNS):
    sys.exit("cannot mount")
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
os.makedirs("disk")
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,rw", "tmpfs", "disk"], check=True)
"""

PROGRAMS = {
    "host-allocation-failed": """
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
x = bytearray(1 << 33)
""",
    "disk-full": MOUNT_SMALL_DISK + "open('disk/x', 'wb').write(bytes(1 << 20))",
    "permission-denied": """
open("program", "w").close()
os.execv("./program", ["program"])
""",
    "open-files": """
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
files = [open("/dev/null") for _ in range(99)]
""",
    "module-not-found": "import einops_that_nobody_has",
    "library-missing": "ctypes.CDLL('libnothing.so.1')",
    "wrong-architecture": r"""
ARM_HEADER = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00" + bytes(200)
with open("program", "wb") as file:
    file.write(ARM_HEADER)
os.chmod("program", 0o755)
os.execv("./program", ["program"])
""",
    "download-failed": """
with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]  # refuses connections, and nobody else gets it
    urllib.request.urlopen(f"http://127.0.0.1:{port}/model.bin")
""",
    "killed": """
subprocess.run(["bash", "-c", 'sh -c "kill -9 $$"; true'], check=True)
""",
    "segmentation-fault": "faulthandler.enable(); ctypes.string_at(0)",
    "none": "raise ValueError('the dog ate shard 3')",
}
"""A program for each rule that must claim its failure; `none`: no rule may."""

IMPORTS = "import ctypes, faulthandler, os, resource, socket, subprocess, sys, urllib.request\n"


@pytest.mark.parametrize("rule", PROGRAMS)
def test_a_real_failure_gets_the_rule_of_its_cause(rule: str, tmp_path: Path) -> None:
    if rule == "disk-full" and os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    (tmp_path / "train.py").write_text(IMPORTS + PROGRAMS[rule])
    log = tmp_path / "output.log"

    with log.open("wb") as output:
        subprocess.run(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            timeout=HANG_SECONDS,
            check=False,
        )

    if "cannot mount" in log.read_text():
        pytest.skip("this container may not mount a small disk")
    with log.open("rb") as file:
        diagnosis = diagnose_lines(read_log(file, "output.log", []))
    assert (diagnosis.rule.name if diagnosis.rule else "none") == rule, log.read_text()


TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "/opt/ml/code/train.py", line 41, in <module>',
    "    step()",
    "pkg.errors.ShardMissing: shard 3 is gone",
]
PLAIN = ("starting\n" + "\n".join(TRACEBACK) + "\n").encode()
CAUSE = "the program raised ShardMissing: shard 3 is gone (/opt/ml/code/train.py:41)"


def diagnosed_file(log: bytes) -> Diagnosis:
    notes: list[str] = []
    return diagnose_lines(read_log(io.BytesIO(log), "x.log", notes), notes)


def events(indent: int | None = None) -> bytes:
    """As `aws logs get-log-events` prints them."""
    entries = [
        {"timestamp": 1763632801000, "message": line, "ingestionTime": 1763632802000}
        for line in TRACEBACK
    ]
    return json.dumps({"events": entries, "nextForwardToken": "f/1"}, indent=indent).encode()


FORMS = {
    "plain": (PLAIN, 5),
    "gzip": (gzip.compress(PLAIN), 5),
    "gzip of two parts": (gzip.compress(PLAIN[:40]) + gzip.compress(PLAIN[40:]), 5),
    "emptied while it was written": (b"\0" * 9_000 + b"\n" + PLAIN, 6),
    "events of CloudWatch": (events(indent=4), 20),
    "docker": (
        b"\n".join(
            json.dumps({"log": f"{line}\n", "stream": "stderr"}).encode() for line in TRACEBACK
        ),
        4,
    ),
    "kubernetes": (
        "\n".join(f"2026-11-20T10:00:01.1234Z stderr F {line}" for line in TRACEBACK).encode(),
        4,
    ),
    "aws logs tail": (
        "\n".join(f"2026-11-20T10:00:01+00:00 a-1/algo-1-17 {line}" for line in TRACEBACK).encode(),
        4,
    ),
    "after a line of bytes": (b"\x01\x02\x03" * 50 + b"\n" + PLAIN, 6),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_failure_is_found_in_whatever_form_its_log_is_kept(form: str) -> None:
    log, line = FORMS[form]
    diagnosis = diagnosed_file(log)
    assert diagnosis.cause == CAUSE
    assert [evidence.line for evidence in diagnosis.evidence] == [line]


STEPS = [f"step {step} loss 0.5" for step in range(1, 8)]
MARKED = {
    "Azure ML": (
        ["Streaming user_logs/std_log_process_3.txt", "====", *TRACEBACK],
        ["Streaming user_logs/std_log_process_0.txt", "====", *STEPS],
        3,
    ),
    "tail": (["==> out/3/a.log <==", *TRACEBACK], ["", "==> out/0/a.log <==", *STEPS], None),
    "grep": (
        [f"logs/rank_3.log:{line}" for line in TRACEBACK],
        [f"logs/rank_0.log:{line}" for line in STEPS],
        3,
    ),
    "grep -n": (
        [f"attempt_0/3/stderr.log:{number}:{line}" for number, line in enumerate(TRACEBACK, 1)],
        [f"attempt_0/0/stderr.log:{number}:{line}" for number, line in enumerate(STEPS, 1)],
        3,
    ),
}


@pytest.mark.parametrize("form", MARKED)
def test_marks_of_files_tell_ranks_apart(form: str) -> None:
    failed, trained, rank = MARKED[form]
    diagnosis = diagnosed_file("\n".join([*failed, *trained]).encode())
    assert diagnosis.cause.endswith(CAUSE.removeprefix("the program"))
    assert [line.rank for line in diagnosis.evidence] == [rank]
    assert diagnosed_file("\n".join([*TRACEBACK, *STEPS]).encode()).cause != CAUSE


def test_a_message_that_only_informs_does_so_in_json_too() -> None:
    line = json.dumps({"level": "INFO", "message": "CUDA out of memory"})
    assert diagnosed_file(line.encode()).rule is None
    assert diagnosed_file(line.replace("INFO", "ERROR").encode()).rule is not None


PROGRAM = b"\x7fELF" + bytes(range(32)) * 9 + b"DBE\n" + b"uncorrectable ECC error\0\0\0\0" * 9


@pytest.mark.parametrize(
    "log", [Random(1).randbytes(100_000), PROGRAM], ids=["random", "a program"]
)
def test_bytes_are_no_evidence(log: bytes) -> None:
    diagnosis = diagnosed_file(log)
    assert (diagnosis.rule, diagnosis.evidence, diagnosis.last_lines) == (None, (), ())
    assert "most of it is not text: is it a log?" in diagnosis.notes[0]


def test_an_empty_log_is_said_to_be_empty_and_not_to_be_without_a_failure() -> None:
    assert (
        diagnosed_file(b"").cause
        == diagnosed_file(b"\n\n").cause
        == diagnosed_file(gzip.compress(b"")).cause
    )
    assert diagnosed_file(b"").cause == "there is no text in it"


def test_a_damaged_or_unfinished_archive_is_read_as_far_as_it_goes() -> None:
    packed = gzip.compress(PLAIN * 50)
    assert "not complete" in diagnosed_file(packed[:-20]).notes[0]
    damaged = diagnosed_file(gzip.compress(PLAIN) + b"more")
    assert (damaged.cause, damaged.notes) == (
        CAUSE,
        ("the compressed log is damaged: what comes after that place was not read",),
    )


def test_what_unpacks_to_a_thousand_times_its_size_is_kept_within_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HEAD_BYTES", "TAIL_BYTES"):
        monkeypatch.setattr(log_text, name, 1 << 18)
    diagnosis = diagnosed_file(gzip.compress(b"a line of text\n" * 100_000 + PLAIN))
    assert (diagnosis.cause, diagnosis.evidence[0].line) == (CAUSE, 100_005)
    assert "in the middle of the log were not read" in diagnosis.notes[0]


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 28] No space left on device: '/scratch/a/step-3.pt'",
        "cannot unpack /data/sources/1.tar.gz into /scratch/a/step-3.pt: No space left on device",
    ],
)
def test_a_full_disk_is_explained_by_the_place_that_is_full(line: str) -> None:
    spaced = line.replace("/scratch/a/", "/scratch/my runs/")
    assert diagnosed(spaced).remedy.startswith("/scratch/my runs/step-3.pt did not fit on its disk")
    assert diagnosed(line).remedy.startswith("/scratch/a/step-3.pt did not fit on its disk: free")
    assert "did not fit" not in diagnosed("OSError: No space left on device").remedy
