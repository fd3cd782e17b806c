"""Rules of known mistakes of the program itself, and of training that diverges."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

PROGRAM = (
    Rule(
        name="arguments",
        patterns=(
            r"unrecognized arguments|SystemExit.*code 2\b|the following arguments are required",
            (
                r"error: argument .{0,80}(choice|invalid|expected|not"
                r" allowed|ignored|conflicting)|Refused: "
            ),
        ),
        cause="the script refused its arguments",
        remedy="the script refused its arguments: see args in job.yaml, and the log",
        restart="after a change",
        source="docs/reference/job-yaml.md",
    ),
    Rule(
        name="diverged",
        patterns=(
            r"NotFinite\b|[Ll]oss (is|was) (nan|NaN|inf|not finite)",
            r"[Nn]on-?finite (loss|gradient|grad)|loss.{0,20}diverged",
            r"satisfy the constraint .{0,40}(but|found invalid)|Loss is (infinite|inf)",
            (
                r"returned nan values in its \d+th output|(NaN|nan|Inf|inf)"
                r" (loss|detected|encountered|found) "
            ),
            (
                r"(contains|input contains|found|has) NaN\b|loss (became|went|=|is:?) nan|weights"
                r" are not finite"
            ),
            r"\b(is|are|became) (all )?(nan|NaN|NAN)\b|probability tensor contains either `?inf`?,"
            r" `?nan`?|"
            r"training (has )?diverged",
        ),
        unless=r"cannot convert float NaN|drop(na|ping)",
        cause="training diverged: the loss, a gradient or a weight was NaN or infinite",
        remedy=(
            "lower the learning rate, warm it up, clip gradients, and prefer bf16 to fp16; look at"
            " the batch of that step for bad values"
        ),
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/amp.html",
    ),
    Rule(
        name="loss-scale",
        patterns=(
            (
                r"loss scale already at minimum|[Ll]oss scale .{0,40}(too small|minimum)|Minimum"
                r" loss scale reached"
            ),
            r"reducing loss scale to (0(\.0)?\b(?!\.)|[\d.]+e-\d)",
        ),
        cause="fp16 overflowed at every loss scale: training diverged",
        remedy="use bf16, or lower the learning rate and warm it up",
        restart="after a change",
        source="https://www.deepspeed.ai/docs/config-json/#fp16-training-options",
    ),
    Rule(
        name="syntax",
        patterns=(
            (
                r"^\s*(SyntaxError|IndentationError|TabError)\b|[:\]]"
                r" (SyntaxError|IndentationError|TabError):"
            ),
        ),
        cause="the program is not valid Python for the version that runs it",
        remedy="correct the line that is shown; new syntax needs a newer Python in the image",
        restart="after a change",
        source="https://docs.python.org/3/tutorial/errors.html#syntax-errors",
    ),
    Rule(
        name="recursion",
        patterns=(r"RecursionError|maximum recursion depth exceeded",),
        cause="a function called itself without end",
        remedy=(
            "look at the repeated lines of the traceback; a wrapper that is applied again at every"
            " epoch does so, too"
        ),
        restart="after a change",
        source="https://docs.python.org/3/library/exceptions.html#RecursionError",
    ),
    Rule(
        name="ended-early",
        patterns=(r"ended with exit code 0 while",),
        cause="a rank ended while others still waited for it",
        remedy=(
            "give every rank the same number of steps (drop_last, DistributedSampler, Join), and"
            " let all call the same collectives to the end"
        ),
        restart="after a change",
        source="https://docs.pytorch.org/tutorials/advanced/generic_join.html",
    ),
    Rule(
        name="hang",
        patterns=(
            (
                r"nobody has heard of it|no sign of life|limits\.hang|is blocked (at|in)|was ended"
                r" as hanging"
            ),
        ),
        cause="a rank stopped making progress, and the others waited for it",
        remedy=(
            "look at the stack in the log: what that line waits for (a lock, a read, a collective"
            " that others do not call)"
        ),
        restart="after a change",
        source="docs/guides/my-script.md",
    ),
)
