"""Rules of the program: its settings, its mistakes, and how its processes end."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

SETTINGS = (
    Rule(
        name="settings-refused",
        patterns=(
            r"MisconfigurationException|omegaconf\.errors\.\w+|hydra\.errors\.\w+",
            r"MissingMandatoryValue|is not in struct|ConfigAttributeError|ConfigKeyError",
            r"InstantiationException|Error merging '|Cannot find primary config",
            r"correct the following DeepSpeed config|DeepSpeedConfigError",
            r"[Bb]atch related parameters|--\w{2,60} requires |validation errors? for \w",
            r"Could not override '|Missing mandatory value",
            r"yaml\.(scanner|parser|constructor|reader)\.\w+Error|TOMLDecodeError|jsonargparse",
            r"Unknown (optimizer|scheduler|loss|dataset|model name|strategy|argument|config)",
            r"is not in the \w+ registry|mutually exclusive|is not a valid \w+, please select",
            r"(can ?not|can't) be used (together|with|at the same time)|Some keys are not used",
            r"must be (divisible|a multiple) (by|of)|should be divisible by|is not divisible by",
            r"Some specified arguments are not|Target modules .{0,200}not found",
            r"conditioned on metric|could not find the monitored key",
            r"Could not find the transformer layer class|Additional properties are not allowed",
            r"is not valid under any of the given schemas",
        ),
        suggests=(r"(Assertion|Value)Error: .{0,80}\b(incompatible|not compatible) with\b",),
        places=(
            r"^(?!KeyboardInterrupt)[^<]*<[^<]*[/\\](hydra|omegaconf|pydantic|pydantic_core|jsonargparse|yaml|"
            r"simple_parsing)[/\\]",
            r"^(ValueError|AssertionError|KeyError|TypeError)[^<]*<[^<]*/(training_args|hf_argparser|"
            r"deepspeed/runtime/config\w*|config_utils|configuration_utils|data_connector|"
            r"configuration_validator)\.py:",
        ),
        unless=r"ModuleNotFound|No module named|shape|[Ww]arning",
        cause="the program refused its settings: one is unknown, missing, or contradicts another",
        remedy=(
            "the message names it: correct it in the configuration or in args; the versions of the"
            " packages decide which settings there are"
        ),
        source="docs/reference/job-yaml.md",
    ),
)

PROGRAM = (
    Rule(
        name="arguments",
        patterns=(
            r"unrecognized arguments|SystemExit.*code 2\b|the following arguments are required",
            r"error: argument .{0,80}(choice|invalid|expected|not allowed|ignored|conflicting)",
            r"Refused: ",
        ),
        cause="the script refused its arguments",
        remedy=(
            "correct args in job.yaml, or what follows `--`, by the usage in the log; true is a flag"
            " without a value: for a program that expects one, write 'true' or 'True' in quotes"
        ),
        source="docs/reference/job-yaml.md",
    ),
    Rule(
        name="diverged",
        patterns=(
            r"NotFinite\b|[Ll]oss (is|was) (nan|NaN|inf|not finite)",
            r"[Nn]on-?finite (loss|gradient|grad)|loss.{0,20}diverged",
            r"satisfy the constraint .{0,40}(but|found invalid)|Loss is (infinite|inf)",
            r"returned nan values in its \d+th output",
            r"(NaN|nan|Inf|inf) (loss|detected|encountered|found) ",
            r"(contains|input contains|found|has) NaN\b|loss (became|went|=|is:?) nan",
            r"weights are not finite|\b(is|are|became) (all )?(nan|NaN|NAN)\b",
            r"probability tensor contains either `?inf`?, `?nan`?|training (has )?diverged",
        ),
        unless=r"cannot convert float NaN|drop(na|ping)",
        cause="training diverged: the loss, a gradient or a weight was NaN or infinite",
        remedy=(
            "lower the learning rate, warm it up, clip gradients, and prefer bf16 to fp16; look at"
            " the batch of that step for bad values"
        ),
        source="https://docs.pytorch.org/docs/stable/amp.html",
    ),
    Rule(
        name="loss-scale",
        patterns=(
            r"loss scale already at minimum|[Ll]oss scale .{0,40}(too small|minimum)",
            r"Minimum loss scale reached|reducing loss scale to (0(\.0)?\b(?!\.)|[\d.]+e-\d)",
        ),
        cause="fp16 overflowed at every loss scale: training diverged",
        remedy="use bf16, or lower the learning rate and warm it up",
        source="https://www.deepspeed.ai/docs/config-json/#fp16-training-options",
    ),
    Rule(
        name="no-keyboard",
        patterns=(r"\bBdbQuit\b", r"EOFError: EOF when reading a line"),
        cause="the program waits for a keyboard, and this job has none",
        remedy=(
            "a program asks in the terminal that follows it, if it is the one process of a local"
            " run without restarts: --provider local --processes 1; elsewhere attach a debugger"
            " (docs/guides/debug.md), and replace input() by arguments"
        ),
        source="docs/guides/debug.md",
    ),
    Rule(
        name="ended-early",
        patterns=(r"ended with exit code 0 while",),
        cause="a rank ended while others still waited for it",
        remedy=(
            "give every rank the same number of steps (drop_last, DistributedSampler, Join), and"
            " let all call the same collectives to the end"
        ),
        source="https://docs.pytorch.org/tutorials/advanced/generic_join.html",
    ),
    Rule(
        name="hang",
        patterns=(
            r"nobody has heard of it|no sign of life|limits\.hang|is blocked (at|in)",
            r"was ended as hanging",
        ),
        cause="a rank stopped making progress, and the others waited for it",
        remedy=(
            "look at the stack in the log: what that line waits for (a lock, a read, a collective"
            " that others do not call)"
        ),
        source="docs/guides/my-script.md",
    ),
)

_SIGNALS = "https://man7.org/linux/man-pages/man7/signal.7.html"
_RAY_GUESSES = r"crashed unexpectedly due to SIGSEGV or"
"""Ray lists what may have happened to any worker that died."""
_TORCHRUN = "https://docs.pytorch.org/docs/stable/elastic/errors.html"

PROCESSES = (
    Rule(
        name="abort-while-leaving",
        patterns=(r"SIGABRT.*while leaving|died by .* while leaving",),
        cause="a process died while it was leaving, after all work was done",
        remedy="all work was done; call destroy_process_group() at the end of the script",
        restart="never",
        source="https://github.com/pytorch/pytorch/issues/190489",
    ),
    Rule(
        name="terminal-closed",
        patterns=(r"SIGHUP\b",),
        cause="the terminal or the session of the job was closed (SIGHUP)",
        remedy=(
            "start it so that it outlives its terminal (cloudtrain submit does; else nohup, tmux,"
            " sbatch)"
        ),
        restart="retry",
        source=_TORCHRUN,
    ),
    Rule(
        name="illegal-instruction",
        patterns=(r"SIGILL|[Ii]llegal instruction",),
        unless=r"CUDA|cudaError|HIP|NCCL",
        cause="a binary uses an instruction that this processor does not have",
        remedy=(
            "take a build of the package for a more general processor, or another type of machine"
        ),
        source=_SIGNALS,
    ),
    Rule(
        name="segmentation-fault",
        patterns=(r"SIGSEGV|[Ss]egmentation fault",),
        unless=_RAY_GUESSES,
        cause="native code crashed (segmentation fault)",
        remedy=(
            "the stack in the log shows where (if there is none: PYTHONFAULTHANDLER=1 in env);"
            " packages built for another torch, and full stacks or memory, are usual"
        ),
        source="https://docs.python.org/3/library/faulthandler.html",
        is_symptom=True,
    ),
    Rule(
        name="aborted",
        patterns=(
            r"SIGABRT|SIGTRAP|SIGFPE|core dumped|Floating point exception",
            r"Fatal Python error: Aborted|terminate called|free\(\): invalid",
            r"double free or corruption|malloc\(\): |corrupted size vs|munmap_chunk\(\)",
        ),
        cause="native code gave up (SIGABRT)",
        remedy="the line before it in the log says what native code found wrong",
        source=_SIGNALS,
        is_symptom=True,
    ),
    Rule(
        name="told-to-end",
        patterns=(r"^SIGTERM: was killed by SIGTERM",),
        cause="a rank was told to end (SIGTERM) before all others, by something outside the job",
        remedy=(
            "look for who sent it: a person, a scheduler or a time limit, a platform that takes the"
            " machine back"
        ),
        restart="retry",
        source=_TORCHRUN,
        is_symptom=True,
    ),
    Rule(
        name="killed",
        patterns=(r"SIGKILL",),
        unless=_RAY_GUESSES,
        cause="a process was killed (SIGKILL), and nothing says by whom",
        remedy=(
            "look at the machine's memory before it (cloudtrain top, dmesg): if it was full, use"
            " fewer DataLoader workers, a smaller batch, or a larger machine; if not, look for who"
            " sent the signal"
        ),
        restart="retry",
        source="https://docs.kernel.org/admin-guide/mm/concepts.html#oom-killer",
        is_symptom=True,
    ),
    Rule(
        name="exit-code",
        patterns=(r"^(exit|SystemExit): exited with code [1-9]\d*$",),
        cause="a process ended itself with an exit code, and raised no exception",
        remedy=(
            "look at what that rank printed last: sys.exit, os._exit, and exit in native code do"
            " not say why by themselves"
        ),
        source="https://docs.python.org/3/library/sys.html#sys.exit",
        is_symptom=True,
    ),
)
