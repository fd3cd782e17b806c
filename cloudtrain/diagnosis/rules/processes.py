"""Rules of processes that ended by a signal or a code without an explanation."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

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
        patterns=(r"got signal: 1\b|SIGHUP\b|exitcode {0,3}: ?-1\b",),
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
        patterns=(r"SIGILL|[Ii]llegal instruction|exitcode {0,3}: ?-4\b|Signal 4\b",),
        cause="a binary uses an instruction that this processor does not have",
        remedy=(
            "take a build of the package for a more general processor, or another type of machine"
        ),
        restart="after a change",
        source=_SIGNALS,
    ),
    Rule(
        name="segmentation-fault",
        patterns=(
            (
                r"SIGSEGV|[Ss]egmentation fault|exitcode {0,3}: ?-11\b|[Ss]ignal 11\b|exit(ed"
                r" with)? code 139"
            ),
        ),
        unless=_RAY_GUESSES,
        cause="native code crashed (segmentation fault)",
        remedy=(
            "the stack in the log shows where (if there is none: PYTHONFAULTHANDLER=1 in env);"
            " packages built for another torch, and full stacks or memory, are usual"
        ),
        restart="after a change",
        source="https://docs.python.org/3/library/faulthandler.html",
        is_general=True,
    ),
    Rule(
        name="aborted",
        patterns=(
            r"SIGABRT|exitcode {0,3}: ?-6\b|[Ss]ignal 6\b|core dumped|Fatal Python error: "
            "Aborted|terminate called after throwing",
            (
                r"free\(\): invalid|double free or corruption|malloc\(\): |corrupted size"
                r" vs|munmap_chunk\(\)"
            ),
            r"exitcode {0,3}: ?-[58]\b|[Ee]xit ?[Cc]ode:? 13[46]\b|Floating point exception",
        ),
        is_catch_all=True,
        cause="native code gave up (SIGABRT)",
        remedy="the line before it in the log says what native code found wrong",
        restart="after a change",
        source=_SIGNALS,
        is_general=True,
    ),
    Rule(
        name="killed",
        patterns=(
            r"SIGKILL|exitcode {0,3}: ?-9\b|[Ss]ignal 9\b|(exit(ed with)?|status) (code|status):?"
            r" \(?137|"
            r"^\s*Killed\s*$",
            r"\bKilled\s+(python|torchrun|accelerate|deepspeed)|died with <Signals\.SIGKILL",
            r"WTERMSIG 9\b",
        ),
        unless=_RAY_GUESSES,
        cause="a process was killed (SIGKILL), and nothing says by whom",
        remedy=(
            "look at the machine's memory before it (cloudtrain top, dmesg): if it was full, use"
            " fewer DataLoader workers, a smaller batch, or a larger machine; if not, look for who"
            " sent the signal"
        ),
        restart="retry",
        source="https://docs.kernel.org/admin-guide/mm/concepts.html#oom-killer",
        is_general=True,
    ),
    Rule(
        name="exit-code",
        patterns=(r"^(exit|SystemExit): exited with code [1-9]\d*$",),
        cause="a process ended itself with an exit code, and raised no exception",
        remedy=(
            "look at what that rank printed last: sys.exit, os._exit, and exit in native code do"
            " not say why by themselves"
        ),
        restart="after a change",
        source="https://docs.python.org/3/library/sys.html#sys.exit",
        is_general=True,
        is_catch_all=True,
    ),
)
