"""Rules: mistakes of the program itself that are known by their message, and training that diverges."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

_AUTOGRAD = "https://docs.pytorch.org/docs/stable/notes/autograd.html"

PROGRAM = (
    Rule(
        name="arguments",
        patterns=(
            r"unrecognized arguments|SystemExit.*code 2\b|the following arguments are required",
            r"error: argument .{0,80}(invalid|expected)|Refused: ",
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
            r"returned nan values in its \d+th output|(NaN|nan|Inf|inf) (loss|detected|encountered|found) ",
            r"(contains|input contains|found|has) NaN\b|loss (became|went|=|is:?) nan|weights are not finite",
            r"\b(is|are|became) (all )?(nan|NaN|NAN)\b|probability tensor contains either `?inf`?, `?nan`?|"
            r"training (has )?diverged",
        ),
        unless=r"cannot convert float NaN|drop(na|ping)",
        cause="training diverged: the loss, a gradient or a weight was NaN or infinite",
        remedy="lower the learning rate, warm it up, clip gradients, and prefer bf16 to fp16; look at the batch "
        "of that "
        "step for bad values",
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/amp.html",
    ),
    Rule(
        name="loss-scale",
        patterns=(
            r"loss scale already at minimum|[Ll]oss scale .{0,40}(too small|minimum)|Minimum loss scale reached",
            r"reducing loss scale to (0(\.0)?\b(?!\.)|[\d.]+e-\d)",
        ),
        cause="fp16 overflowed at every loss scale: training diverged",
        remedy="use bf16, or lower the learning rate and warm it up",
        restart="after a change",
        source="https://www.deepspeed.ai/docs/config-json/#fp16-training-options",
    ),
    Rule(
        name="devices-mixed",
        patterns=(
            r"[Ee]xpected all tensors to be on the same device|is not on the expected device|should be the same|"
            r"Input type .{0,80}and weight type",
        ),
        unless=r"(shape|size|length|number)s? .{0,20}should be the same",
        cause="an operation got tensors of different devices or types",
        remedy="move the model and every tensor of a batch to the rank's device (.to(device)), and use one dtype or "
        "autocast",
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.device",
    ),
    Rule(
        name="dtypes-mixed",
        patterns=(
            r"expected scalar type|must have the same dtype|expected .{0,30}dtype|not implemented for '(Half|Long|Int)",
        ),
        cause="an operation got a tensor of a type that it does not take",
        remedy="convert it (.float(), .long()) or run under torch.autocast; labels of cross entropy are whole numbers",
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.dtype",
    ),
    Rule(
        name="shapes-differ",
        patterns=(
            r"shapes cannot be multiplied|[Ss]izes of tensors must match|must match the size of tensor|"
            r"size of tensor a",
            r"shape '\[.{0,80}\]' is invalid for input|[Ee]xpected input batch_size|mat1 dim 1 must match|"
            r"expected input\[.{0,80}\] to have \d+ channels",
            r"Mismatch in shape: |to have the same number of dimensions",
        ),
        cause="an operation got tensors whose shapes do not fit",
        remedy="compare the shape of a batch with what the first layer expects; look at the line of the traceback",
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/notes/broadcasting.html",
    ),
    Rule(
        name="changed-in-place",
        patterns=(
            r"has been modified by an inplace operation|marked (as )?ready (only )?(once|twice)|"
            r"backward through the graph a second time",
        ),
        cause="autograd needs a value that was changed or freed before",
        remedy="replace the operation in place (+=, relu_), call backward once per forward, and use "
        "checkpoint(use_reentrant=False) with DDP; torch.autograd.set_detect_anomaly(True) names the operation",
        restart="after a change",
        source=_AUTOGRAD,
    ),
    Rule(
        name="no-gradient",
        patterns=(r"does not require grad and does not have a grad_fn|optimizer got an empty parameter list",),
        cause="nothing that the loss depends on is trained",
        remedy="see that parameters have requires_grad, and that the loss is not computed under no_grad or detached",
        restart="after a change",
        source=_AUTOGRAD,
    ),
    Rule(
        name="syntax",
        patterns=(r"^\s*(SyntaxError|IndentationError|TabError)\b|[:\]] (SyntaxError|IndentationError|TabError):",),
        cause="the program is not valid Python for the version that runs it",
        remedy="correct the line that is shown; new syntax needs a newer Python in the image",
        restart="after a change",
        source="https://docs.python.org/3/tutorial/errors.html#syntax-errors",
    ),
    Rule(
        name="recursion",
        patterns=(r"RecursionError|maximum recursion depth exceeded",),
        cause="a function called itself without end",
        remedy="look at the repeated lines of the traceback; a wrapper that is applied again at every epoch "
        "does so, too",
        restart="after a change",
        source="https://docs.python.org/3/library/exceptions.html#RecursionError",
    ),
    Rule(
        name="ended-early",
        patterns=(r"ended with exit code 0 while",),
        cause="a rank ended while others still waited for it",
        remedy="give every rank the same number of steps (drop_last, DistributedSampler, Join), and let all "
        "call the same "
        "collectives to the end",
        restart="after a change",
        source="https://docs.pytorch.org/tutorials/advanced/generic_join.html",
    ),
    Rule(
        name="hang",
        patterns=(r"nobody has heard of it|no sign of life|limits\.hang|is blocked (at|in)|was ended as hanging",),
        cause="a rank stopped going on, and the others waited for it",
        remedy="look at the stack in the log: what that line waits for (a lock, a read, a collective that "
        "others do not "
        "call)",
        restart="after a change",
        source="docs/guides/my-script.md",
    ),
)
