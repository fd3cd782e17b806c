"""Rules of checkpoints and weights that are damaged, do not fit, or were not written."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

_SAVING = "https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html"

CHECKPOINTS = (
    Rule(
        name="checkpoint-not-written",
        patterns=(
            r"PytorchStreamWriter failed writing|write\(\): fd \d+ failed|unexpected pos \d+ vs "
            r"\d+|basic_ios::clear: iostream error",
            r"[Ss]afetensors? .{0,40}I/O error|SafetensorError: Error while"
            r" serializing(?!.*(PermissionDenied|"
            r"StorageFull))",
        ),
        cause="a checkpoint could not be written to its end, as happens when the disk is full",
        remedy=(
            "look at the free space of that disk: keep fewer checkpoints (checkpoints.keep), or ask"
            " for more (resources.disk)"
        ),
        restart="after a change",
        source="https://github.com/pytorch/pytorch/issues/31620",
    ),
    Rule(
        name="checkpoint-damaged",
        patterns=(
            (
                r"PytorchStreamReader failed|failed finding central directory|unexpected EOF,"
                r" expected \d+ more bytes"
            ),
            (
                r"Error while deserializing"
                r" header|HeaderTooLarge|MetadataIncompleteBuffer|InvalidHeaderDeserialization"
            ),
            (
                r"UnpicklingError: (invalid load key|pickle data was truncated)|EOFError: Ran out"
                r" of input"
            ),
            (
                r"mmap length .{0,60}greater than file size|Unable to load weights from pytorch"
                r" checkpoint"
            ),
        ),
        places=(r"^(OSError: \[Errno 22\]|EOFError)[^<]*<[^<]*/torch/serialization\.py:",),
        cause="a checkpoint or file of weights is damaged or not complete",
        remedy=(
            "remove it and resume from an earlier checkpoint; if it was downloaded, download it again (a"
            " text file of git LFS in its place shows so, too)"
        ),
        restart="after a change",
        source=_SAVING,
    ),
    Rule(
        name="checkpoint-does-not-fit",
        patterns=(
            r"Error\(s\) in loading state_dict|size mismatch for [\w.]+: copying a param|"
            r"loaded state dict (contains|has) .{0,60}(parameter group|different number)",
            r"([Mm]issing|[Uu]nexpected) key.{0,400} in state_dict|[Uu]nexpected key\(s\) in"
            r" state_dict|"
            r"from checkpoint, the shape in current model is|[Ss]hape mismatch for loaded|"
            r"checkpoint contains only the (model|weights)",
            r"[Cc]heckpoint .{0,60}(is not compatible|incompatible) with|different world"
            r" ?size.{0,80}checkpoint|"
            r"checkpoint was saved with .{0,80}(world|partition|parallel)",
            r"Trying to set a tensor of shape",
        ),
        places=(
            r"^KeyError[^<]*<[^<]*(state_dict|ckpt|checkpoint)\w*\[['\"]",
            r"^(KeyError|ValueError|RuntimeError|AttributeError)[^<]*<"
            r" (load_state_dict|load_checkpoint|restore_\w+|"
            r"resume_\w+|_load_checkpoint|_load_from_checkpoint|_load_optimizer_and_scheduler) in ",
        ),
        cause="the checkpoint belongs to another model",
        remedy=(
            "build the model with the settings of the checkpoint, or start without it (cloudtrain"
            " rerun --fresh)"
        ),
        restart="after a change",
        source=_SAVING,
    ),
    Rule(
        name="weights-only",
        patterns=(r"Weights only load failed|\bweights_only\b",),
        unless=r"FutureWarning",
        cause="torch.load refuses a checkpoint that holds more than tensors",
        remedy=(
            "if the file is your own, pass weights_only=False or"
            " torch.serialization.add_safe_globals([…]); save a state dict the next time"
        ),
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/notes/serialization.html#weights-only",
    ),
    Rule(
        name="checkpoint-of-other-device",
        patterns=(r"Attempting to deserialize object on",),
        cause="the checkpoint was saved from a device that this machine does not have",
        remedy=(
            "pass map_location='cpu' to torch.load, and move the model to the rank's device after"
            " that"
        ),
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/generated/torch.load.html",
    ),
    Rule(
        name="checkpoint-not-found",
        patterns=(
            r"[Cc]an't find a valid checkpoint|No valid checkpoint found|Unable to find latest"
            r" file|"
            r"[Cc]heckpoint .{0,120}(not found|does not exist)",
        ),
        cause="the checkpoint to resume from does not exist",
        remedy=(
            "look at its address and at what the folder holds; start without it if there is"
            " none yet"
        ),
        restart="after a change",
        source=_SAVING,
    ),
    Rule(
        name="tensors-shared",
        patterns=(
            (
                r"[Ss]ome tensors share memory|contained shared tensors|Removed shared tensor"
                r" .{0,200}while saving"
            ),
        ),
        unless=r"[Ww]arning",
        cause="safetensors does not save tensors that share their memory, such as tied embeddings",
        remedy=(
            "save with safe_serialization=False (Trainer: save_safetensors=False), by "
            "safetensors.torch.save_model, or "
            "clone one of the tensors before"
        ),
        restart="after a change",
        source="https://huggingface.co/docs/safetensors/torch_shared_tensors",
    ),
)
