"""Rules: a checkpoint or a file of weights that is damaged, does not fit, or could not be written."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

_SAVING = "https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html"

CHECKPOINTS = (
    Rule(
        name="checkpoint-not-written",
        patterns=(
            r"PytorchStreamWriter failed writing|write\(\): fd \d+ failed|unexpected pos \d+ vs "
            r"\d+|basic_ios::clear: iostream error",
        ),
        cause="a checkpoint could not be written to its end, as happens when the disk is full",
        remedy="look at the free space of that disk: keep fewer checkpoints (checkpoints.keep), or ask for more "
        "(resources.disk)",
        restart="after a change",
        source="https://github.com/pytorch/pytorch/issues/31620",
    ),
    Rule(
        name="checkpoint-damaged",
        patterns=(
            r"PytorchStreamReader failed|failed finding central directory|unexpected EOF, expected \d+ more bytes",
            r"Error while deserializing header|HeaderTooLarge|MetadataIncompleteBuffer|InvalidHeaderDeserialization",
            r"(OSError: \[Errno 22\]|EOFError).{0,200}/torch/serialization\.py:\d",
            r"UnpicklingError: (invalid load key|pickle data was truncated)|EOFError: Ran out of input",
        ),
        cause="a checkpoint or file of weights is damaged or not complete",
        remedy="remove it and go on from the one before it; if it was downloaded, download it again (a text "
        "file of git "
        "LFS in its place shows so, too)",
        restart="after a change",
        source=_SAVING,
    ),
    Rule(
        name="checkpoint-does-not-fit",
        patterns=(
            r"Error\(s\) in loading state_dict|size mismatch for [\w.]+: copying a param|"
            r"loaded state dict (contains|has) .{0,60}(parameter group|different number)",
            r"[Mm]issing key\(s\) in state_dict|from checkpoint, the shape in current model is",
        ),
        cause="the checkpoint is of another model than the one that is built",
        remedy="build the model with the settings of the checkpoint, or start without it (cloudtrain rerun --fresh)",
        restart="after a change",
        source=_SAVING,
    ),
    Rule(
        name="weights-only",
        patterns=(r"Weights only load failed|weights_only",),
        unless=r"FutureWarning",
        cause="torch.load refuses a checkpoint that holds more than tensors",
        remedy="if the file is your own, pass weights_only=False or torch.serialization.add_safe_globals([…]); save a "
        "state dict the next time",
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/notes/serialization.html#weights-only",
    ),
)
