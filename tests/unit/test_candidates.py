"""Choice of the failure in a log, and tracebacks of any shape."""

from __future__ import annotations

import pytest

from cloudtrain.diagnosis.failure import Diagnosis, diagnose_lines
from cloudtrain.diagnosis.log_text import Evidence
from cloudtrain.diagnosis.rules import signal_of
from tests.support.failure_reports import ENDINGS, TRAINING, diagnosed

LIBRARY = "/opt/conda/lib/python3.11/site-packages"
HEADER = "Traceback (most recent call last):"
FRAME = '  File "/app/train.py", line 7, in main'
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def diagnosis_of(*lines: str) -> Diagnosis:
    return diagnosed(lines)


def rule_of(*lines: str) -> str:
    rule = diagnosed(lines).rule
    return rule.name if rule else "none"


def raised(exception: str, rank: str = "") -> list[str]:
    return [f"{rank}{line}" for line in (HEADER, FRAME, exception)]


def test_an_exception_wins_over_an_older_line_that_a_rule_knows() -> None:
    older = "apex: OSError: libcudart.so.11.0: cannot open shared object file"
    diagnosis = diagnosed([older, *raised("ValueError: the dog ate shard 3")])
    assert diagnosis.rule is None
    assert diagnosis.headline == (
        "the program raised ValueError: the dog ate shard 3 (/app/train.py:7)"
    )


OLDER = "E1101 plugin.cc:7] libcudart.so.11.0: cannot open shared object file"


@pytest.mark.parametrize(
    ("last", "rule"),
    [
        ("ERROR: data: [Errno 28] No space left on device", "disk-full"),
        ("exitcode  : -9 (pid: 7)", "killed"),
        ("RuntimeError: CUDA error: unspecified launch failure", "gpu-launch-failure"),
        ("CondaError: pip returned an error", "library-missing"),
    ],
)
def test_of_mere_lines_the_last_counts_and_less_than_a_symptom(last: str, rule: str) -> None:
    assert rule_of(OLDER, last) == rule


def test_a_mere_line_far_before_the_end_says_less_than_an_exit_code() -> None:
    start = "rm: cannot remove 'old.pt': No such file or directory"
    end = "failed (exitcode: 1) local_rank: 0"
    assert rule_of(start, end) == "file-not-found"
    assert rule_of(start, *["reading"] * 100, end) == "launcher-summary"
    assert rule_of(start, *["reading"] * 100) == "file-not-found"


def test_what_a_script_prints_after_a_failure_is_not_its_cause() -> None:
    assert rule_of(
        "train.py: error: unrecognized arguments: --lr", "cp: cannot stat 'x': No such file"
    ) == ("arguments")


def test_lines_after_progress_do_not_explain_what_came_before_it() -> None:
    lines = ["fatal: not a git repository", *TRAINING, "ERROR: [Errno 28] No space left on device"]
    assert diagnosed(lines).headline == lines[-1]


def test_a_line_keeps_the_cause_that_its_message_names() -> None:
    message = '"message": "User program failed with ModuleNotFoundError: No module named \'x\'"'
    lines = ["ERROR: ActivityFailedException:", "{", message, "}", "InnerException None"]
    assert rule_of(*lines) == "module-not-found"


def test_an_exception_of_c_has_its_message() -> None:
    thrown = "terminate called after throwing an instance of 'std::runtime_error'"
    diagnosis = diagnosed([thrown, "  what():  the tokenizer lost its file"])
    assert diagnosis.headline == "the program raised runtime_error: the tokenizer lost its file"
    timeout = "  what():  [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"
    assert rule_of(thrown, timeout) == "collective-timeout"


def test_an_exception_of_a_thread_counts_if_the_program_then_failed_by_itself() -> None:
    thread = ["Exception in thread Thread-3 (heartbeat):", *raised("ConnectionError: HTTP")]
    assert rule_of(*thread, "Killed") == "killed"
    assert rule_of(*thread) == "download-failed"
    unknown = ["Exception in thread Thread-3 (load):", *raised("ValueError: the dog ate it")]
    headline = "the program raised ValueError: the dog ate it (/app/train.py:7)"
    assert diagnosed([*unknown, "no more data", "Process exited with code 1"]).headline == headline
    assert rule_of(*unknown, *raised(OOM)) == "gpu-out-of-memory"
    footer = [*ENDINGS["a tracker's last words"], *ENDINGS["words of success"]]
    assert diagnosed([*unknown, *footer]).headline == ""
    assert diagnosed([*unknown, *footer, "Process exited with code 1"]).headline == headline


def test_three_lines_of_progress_of_the_rank_outlive_an_exception() -> None:
    raised_first = raised(OOM, "[rank0]: ")
    assert (
        rule_of(*raised_first, *(f"[rank0]: {line}" for line in TRAINING[:2]))
        == "gpu-out-of-memory"
    )
    assert rule_of(*raised_first, *(f"[rank0]: {line}" for line in TRAINING[:3])) == "none"
    assert rule_of(*raised_first, *(f"[rank1]: {line}" for line in TRAINING)) == "gpu-out-of-memory"
    assert rule_of(*raised_first, *["[rank0]:  5%| | 5/102 [00:02<00:09, 2.0it/s]"] * 8) != "none"


def test_the_last_exception_of_a_rank_counts_and_the_first_rank() -> None:
    first = raised("FileNotFoundError: [Errno 2] No such file or directory: 'a'", "[rank1]: ")
    last = raised("OSError: [Errno 28] No space left on device", "[rank1]: ")
    of_rank_0 = raised("MemoryError", "[rank0]: ")
    assert rule_of(*first, *last, *of_rank_0) == "disk-full"


def test_a_traceback_below_a_warning_of_a_logger_was_caught() -> None:
    caught = ["WARNING:root:the cache cannot be read", *raised("FileNotFoundError: 'cache'")]
    assert rule_of(*caught, "Killed") == "killed"


@pytest.mark.parametrize(
    ("link", "rule"),
    [
        ("The above exception was the direct cause of the following exception:", "disk-full"),
        ("During handling of the above exception, another exception occurred:", "weights-only"),
    ],
)
def test_a_chain_is_explained_by_its_cause_or_by_what_came_last(link: str, rule: str) -> None:
    lines = [
        *raised("OSError: [Errno 28] No space left on device"),
        "",
        link,
        "",
        *raised("RuntimeError: Weights only load failed"),
    ]
    diagnosis = diagnosed(lines)
    assert diagnosis.rule is not None
    assert diagnosis.rule.name == rule
    assert "RuntimeError: Weights only load failed" in diagnosis.headline


def test_the_leaves_of_an_exception_group_explain_it() -> None:
    group = [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/app/train.py", line 3, in <module>',
        '  |     raise ExceptionGroup("loaders", errors)',
        "  | ExceptionGroup: loaders (2 sub-exceptions)",
        "  +-+---------------- 1 ----------------",
        "    | ValueError: the dog ate shard 3",
        "    +---------------- 2 ----------------",
        "    | OSError: [Errno 28] No space left on device",
        "    +------------------------------------",
    ]
    diagnosis = diagnosed(group)
    assert diagnosis.rule is not None
    assert diagnosis.rule.name == "disk-full"
    assert "ExceptionGroup: loaders (2 sub-exceptions)" in diagnosis.headline
    assert "ValueError: the dog ate shard 3" in diagnosis.headline


def test_the_rest_of_a_message_belongs_to_its_exception() -> None:
    lines = ["torch.distributed.DistBackendError: NCCL error in: x.cpp:12, internal error"]
    lines += ["Last error:", "Bootstrap : no socket interface found"]
    assert rule_of(*lines) == "network-interface"


def test_the_kernel_says_more_than_a_symptom_and_less_than_an_exception() -> None:
    kernel = "Out of memory: Killed process 7 (python3)"
    assert rule_of("exitcode  : -9 (pid: 7)", kernel) == "host-out-of-memory"
    assert rule_of(kernel, *raised("MemoryError")) == "host-allocation-failed"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("exitcode  : -9 (pid: 7)", "SIGKILL"),
        ("exits with return code = -11", "SIGSEGV"),
        ("crashed with exit code -7", "SIGBUS"),
        ("container exited with code 137", "SIGKILL"),
        ("AlgorithmError: Exit Code: 139", "SIGSEGV"),
        ("pid 7 WTERMSIG 9", "SIGKILL"),
        ("traceback : Signal 6 (SIGABRT) received by PID 7", "SIGABRT"),
        ("Terminated", "SIGTERM"),
        ("train.sh: line 3:    41 Killed                  python train.py", "SIGKILL"),
        ("exited with code 1", ""),
        ("error code: 404", ""),
        ("status code 200", ""),
    ],
)
def test_a_signal_is_read_in_whatever_form_it_is_printed(line: str, name: str) -> None:
    assert signal_of(line) == name


SHAPES = {
    "whole": (HEADER, '  File "train.py", line 7, in main', "    batch[key]", "KeyError: 'labels'"),
    "of a rank": (
        "[rank3]: " + HEADER,
        '[rank3]:   File "train.py", line 7, in main',
        "[rank3]: KeyError: 'labels'",
    ),
    "its beginning is cut off": (
        '  File "train.py", line 7, in main',
        "    batch[key]",
        "KeyError: 'labels'",
    ),
    "its indentation is lost": (
        HEADER,
        'File "train.py", line 7, in main',
        "batch[key]",
        "KeyError: 'labels'",
    ),
    "deeper in a log of pip": (
        "    " + HEADER,
        '      File "train.py", line 7, in main',
        "    KeyError: 'labels'",
    ),
    "of a notebook": (
        "File train.py:7, in main(batch)",
        "      6 key = 1",
        "----> 7 batch[key]",
        "KeyError: 'labels'",
    ),
    "of a notebook, folded": (
        "KeyError                Traceback (most recent call last)",
        "[<ipython-input-3>](https://localhost:8080/#) in <cell line: 4>()",
        "2 frames",
        "[train.py](https://localhost:8080/#) in main(batch)",
        "-> 7     raise KeyError('labels')",
        "KeyError: 'labels'",
    ),
    "boxed": (
        "╭──── Traceback (most recent call last) ────╮",
        "│ train.py:7 in main │",
        "╰─────╯",
        "KeyError: 'labels'",
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_traceback_is_read_in_whatever_shape_it_is_printed(shape: str) -> None:
    diagnosis = diagnosis_of(*SHAPES[shape])
    place = "" if "folded" in shape else " (train.py:7)"
    assert diagnosis.cause.endswith(f"raised KeyError: 'labels'{place}")


def test_frame_of_the_program_and_of_the_called_library_are_named() -> None:
    frames = (
        '  File "train.py", line 7, in main',
        f'  File "{LIBRARY}/lib/loader.py", line 12, in load',
    )
    diagnosis = diagnosis_of(HEADER, *frames, "KeyError: 'labels'")
    assert (
        diagnosis.cause == "the program raised KeyError: 'labels' (train.py:7, in lib/loader.py:12)"
    )
    diagnosis = diagnosis_of(HEADER, frames[1], "KeyError: 'labels'")
    assert "(lib/loader.py:12)" in diagnosis.cause


@pytest.mark.parametrize("place", ["<frozen os>", f"{LIBRARY.partition('site')[0]}os.py"])
def test_a_missing_environment_variable_is_told_as_such(place: str) -> None:
    frames = (
        '  File "train.py", line 7, in <module>',
        "    folder = os.environ['DATA']",
        f'  File "{place}", line 679, in __getitem__',
    )
    remedy = diagnosis_of(HEADER, *frames, "KeyError: 'DATA'").remedy
    assert "the environment variable DATA is not set: give it a value under env" in remedy
    assert "frozen" not in remedy


def test_an_exception_that_python_ignores_is_not_the_cause() -> None:
    ignored = (
        "Exception ignored in: <function D.__del__ at 0x7>",
        HEADER,
        '  File "x.py", line 3, in __del__',
    )
    assert diagnosis_of(*ignored, "AssertionError: can only test a child process").evidence == ()


def test_an_exception_that_a_rule_knows_explains_the_unknown_one_that_led_to_it() -> None:
    first = (HEADER, '  File "config.py", line 3, in get', "KeyError: 'lr'")
    separator = "During handling of the above exception, another exception occurred:"
    traceback = (
        HEADER,
        '  File "train.py", line 9, in main',
        "omegaconf.errors.ConfigKeyError: no lr",
    )
    assert rule_of(*first, separator, *traceback) == "settings-refused"
    assert rule_of(*first, "ChildFailedError: train.py") == "none"


def test_a_message_of_several_lines_is_read_line_by_line_too() -> None:
    reason = (
        f'AlgorithmError: ExecuteUserScriptError:\n{HEADER}\n  File "train.py", line 7\nKeyError:'
        " 'labels'"
    )
    diagnosis = diagnose_lines([Evidence(reason, "platform")])
    assert diagnosis.cause == "the program raised KeyError: 'labels' (train.py:7)"
    assert [consequence.rule.name for consequence in diagnosis.consequences] == ["launcher-summary"]


PLACES = {
    "compile-failed": (
        f"{LIBRARY}/torch/_inductor/graph.py",
        "lower",
        "out = lowerings[target]()",
        "AssertionError",
    ),
    "extension-not-built": (
        f"{LIBRARY}/torch/utils/cpp_extension.py",
        "_build",
        "raise",
        "RuntimeError: exit 1",
    ),
    "checkpoint-does-not-fit": (
        "train.py",
        "resume",
        "opt.load_state_dict(checkpoint['opt'])",
        "KeyError: 'opt'",
    ),
    "checkpoint-damaged": (
        f"{LIBRARY}/torch/serialization.py",
        "_load",
        "magic = load(f)",
        "EOFError",
    ),
    "tracker-refused": (f"{LIBRARY}/mlflow/store.py", "log", "raise", "TypeError: no float"),
    "settings-refused": (
        f"{LIBRARY}/transformers/training_args.py",
        "__post_init__",
        "raise",
        "ValueError: no output",
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_an_exception_is_known_by_where_it_was_raised_if_not_by_its_message(name: str) -> None:
    file, function, code, exception = PLACES[name]
    lines = (
        '  File "train.py", line 1, in main',
        "    run()",
        f'  File "{file}", line 7, in {function}',
        f"    {code}",
    )
    assert rule_of(HEADER, *lines, exception) == name


def test_what_is_tried_again_is_not_the_cause_and_the_last_try_is() -> None:
    tried = "Retrying in 1s: (MaxRetryError) Max retries exceeded with url: /config.json"
    assert rule_of(tried) == "none"
    assert (
        rule_of(tried, "requests.exceptions.ConnectionError: Max retries exceeded with url: /")
        != "none"
    )


UNCAUGHT = [
    HEADER,
    '  File "/app/train.py", line 40, in <module>',
    "    main()",
    '  File "/app/train.py", line 12, in main',
    "KeyError: 'k'",
]
UNCAUGHT_HEADLINE = "the program raised KeyError: 'k' (/app/train.py:12)"


@pytest.mark.parametrize("ending", [*ENDINGS.values(), TRAINING])
def test_an_exception_that_nothing_caught_stays_the_cause(ending: tuple[str, ...]) -> None:
    assert diagnosed([*UNCAUGHT, *ending]).headline == UNCAUGHT_HEADLINE


def test_an_exception_that_another_program_raises_later_is_not_the_cause() -> None:
    upload = [HEADER, '  File "/app/upload.py", line 3, in <module>', "OSError: no route to host"]
    assert diagnosed([*UNCAUGHT, *upload]).headline == UNCAUGHT_HEADLINE


def test_ranks_that_are_started_again_outlive_an_exception() -> None:
    restart = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group"
    assert diagnosed([*UNCAUGHT, restart, *TRAINING]).headline == ""


@pytest.mark.parametrize(
    "mark", ["[INFO] ", "INFO:root:", "2026-11-21 02:04:34,447 - INFO - train - "]
)
def test_an_exception_that_is_logged_as_information_is_one(mark: str) -> None:
    line = f"{mark}RuntimeError: cuDNN Frontend error: no plan"
    assert diagnosed([line]).headline == (
        "the program raised RuntimeError: cuDNN Frontend error: no plan"
    )
    assert diagnosed([mark + line for line in UNCAUGHT]).headline == UNCAUGHT_HEADLINE


@pytest.mark.parametrize(
    "ending",
    [
        (
            "W1121 10:00:00 1 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process"
            " 41 closing signal SIGTERM",
            *ENDINGS["torchrun"],
        ),
        (*ENDINGS["Slurm"], "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2024-01-01 ***"),
        ENDINGS["SageMaker"],
    ],
)
def test_an_error_line_outranks_the_ending_of_a_launcher(
    ending: tuple[str, ...],
) -> None:
    line = "error: the tokenizer has no padding token"
    assert diagnosed([line, *ending]).headline == line


def test_ranks_in_different_collectives_are_shown_side_by_side() -> None:
    lines = []
    for rank, (number, call) in enumerate([(13, "dist.all_reduce(x)"), (14, "dist.barrier()")]):
        lines += [
            HEADER,
            f'  File "/app/train.py", line {number}, in <module>',
            f"    {call}",
            f'  File "{LIBRARY}/torch/distributed/distributed_c10d.py", line 3252, in wait',
            "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for"
            " recv operation to complete",
        ]
        lines[-5:] = [f"[rank{rank}]: {line}" for line in lines[-5:]]

    diagnosis = diagnosed(lines)
    assert diagnosis.rule is not None
    assert diagnosis.rule.name == "collective-timeout"
    assert [(line.rank, line.text) for line in diagnosis.evidence] == [
        (0, "/app/train.py:13  dist.all_reduce(x)"),
        (1, "/app/train.py:14  dist.barrier()"),
    ]


def test_a_rank_that_exits_with_code_0_has_not_failed() -> None:
    lines = ["[rank0]: received SIGTERM: saving step 5", "[rank0]: leaving with exit code 0"]
    assert diagnosed(lines).rule is None
