"""Rules of models, tokenizers and checkpoints."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

MODELS = (
    Rule(
        name="gated-model",
        patterns=(
            r"Cannot access gated repo|is a gated repo|GatedRepoError|RepositoryNotFoundError",
            r"401 Client Error.{0,200}huggingface|Repository Not Found for url",
            r"is not a local folder and is not a valid model identifier|RevisionNotFoundError",
            r"Repo id must (use|be)|HFValidationError|DatasetNotFoundError",
        ),
        cause=(
            "a model or data set of the hub was refused: it is gated or private, or its name is"
            " wrong"
        ),
        remedy=(
            "check its name, accept its conditions on its page, and hand a token over as a secret"
            " (HF_TOKEN)"
        ),
        source="https://huggingface.co/docs/hub/models-gated",
    ),
    Rule(
        name="model-not-found",
        patterns=(
            (
                r"Can't load (the )?(tokenizer|config|model|image processor|feature extractor|pr"
                r"ocessor|weights)\w*"
            ),
            r"Can't find model '|Error no file named|does not appear to have a file named",
            r"is not the path to a directory containing|EntryNotFoundError",
            r"Entry Not Found for url|Unrecognized model in",
        ),
        unless=r"We couldn't connect to",
        cause="a model or tokenizer was found neither in that folder nor in the hub",
        remedy=(
            "of a folder: see that it is there and has config.json, the weights and the tokenizer's"
            " files; of the hub: check the name, and that the job's network reaches it, or give it"
            " as an input"
        ),
        source="https://huggingface.co/docs/transformers/installation#offline-mode",
    ),
    Rule(
        name="model-too-new",
        patterns=(
            r"does not recognize this architecture|Tokenizer class \w+ does not exist",
            r"Unrecognized configuration class|`?rope_scaling`? must be a dictionary",
            r"Unknown (model|tokenizer|quantization) (type|class)",
        ),
        cause="the installed transformers does not know this kind of model",
        remedy=(
            "install a newer transformers (the model's page says which), or pass"
            " trust_remote_code=True if the model brings its own code"
        ),
        source="https://huggingface.co/docs/transformers/installation",
    ),
    Rule(
        name="remote-code",
        patterns=(
            r"requires you to execute the .{0,40}(file|code|script)|contains custom code",
            r"pass the argument `?trust_remote_code|[Dd]ataset scripts are no longer supported",
        ),
        cause="a model or data set contains code, which needs your consent to run",
        remedy=(
            "read that code, and pass trust_remote_code=True; a data set with a script needs"
            " datasets<4"
        ),
        source="https://huggingface.co/docs/transformers/custom_models",
    ),
    Rule(
        name="tokenizer-settings",
        patterns=(
            r"tokenizer (does not|you are using .{0,60}does not) have",
            r"does not have a padding token|without a? ?pad_token",
            r"[Cc]annot use (apply_chat_template|chat template)|chat_template is not set",
            r"no chat template|'padding_value' .{0,40}not NoneType",
            r"[Nn]o padding token (is )?defined|not configured with a padding token",
        ),
        cause="the tokenizer lacks what training needs: a padding token or a chat template",
        remedy=(
            "tokenizer.pad_token = tokenizer.eos_token (and model.config.pad_token_id), or a"
            " tokenizer that has one; a chat template is an attribute of the tokenizer, too"
        ),
        source="https://huggingface.co/docs/transformers/pad_truncation",
    ),
    Rule(
        name="quantized-model",
        patterns=(
            r"loaded in (8|4|`8|`4)-?bit|is not supported for `?[48]-bit|purely quantized",
            r"quantized model.{0,60}(train|move)",
        ),
        cause="a quantized model is placed or trained in a way that it does not allow",
        remedy=(
            "load it on each rank's own GPU (device_map={'': local_rank}), train adapters on it"
            " (LoRA) instead of itself, and do not move it by .to()"
        ),
        source="https://huggingface.co/docs/transformers/quantization/bitsandbytes",
    ),
    Rule(
        name="empty-model",
        patterns=(
            r"Cannot copy out of meta tensor|Tensor on device meta is not on",
            r"meta tensors? .{0,60}(no data|storage)",
        ),
        cause=(
            "the model's tensors have no values: they were made on the meta device and never filled"
        ),
        remedy=(
            "load or initialize the weights after building it (model.to_empty, then a checkpoint),"
            " and leave device_map and low_cpu_mem_usage out where FSDP or DeepSpeed places the"
            " model"
        ),
        source="https://docs.pytorch.org/docs/stable/meta.html",
    ),
    Rule(
        name="parameters-differ",
        patterns=(
            r"[Mm]ust flatten tensors with|requires uniform|Cannot flatten integer",
            r"uniform (dtype|original parameter)|set\(t\.dtype for t in tensors\)",
        ),
        cause=(
            "parameters that FSDP or ZeRO puts into one piece differ in dtype, or in whether they"
            " are trained"
        ),
        remedy=(
            "load the whole model in one dtype; with adapters pass use_orig_params=True, or wrap"
            " frozen and trained modules apart"
        ),
        source="https://docs.pytorch.org/docs/stable/fsdp.html",
    ),
    Rule(
        name="zero-out-of-step",
        patterns=(
            r"ZeroParamStatus|'ds_status'|still have inflight params|InflightParam",
            r"disagreement between rank ?\d+ and rank",
            r"'status': 'NOT_AVAILABLE'",
        ),
        places=(r" in [^<]{0,200}/deepspeed/runtime/zero/(partition|parameter_offload|stage3)",),
        cause=(
            "ZeRO-3 met parameters that are not gathered: modules were not called in the order of"
            " the steps before"
        ),
        remedy=(
            "use weights inside their module's forward, or under deepspeed.zero.GatheredParameters;"
            " experts need set_z3_leaf_modules; ZeRO-2 shows whether it is that"
        ),
        source="https://deepspeed.readthedocs.io/en/latest/zero3.html",
    ),
)

_SAVING = "https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html"


CHECKPOINTS = (
    Rule(
        name="checkpoint-not-written",
        patterns=(
            r"PytorchStreamWriter failed writing|write\(\): fd \d+ failed",
            r"unexpected pos \d+ vs \d+|basic_ios::clear: iostream error",
            r"[Ss]afetensors? .{0,40}I/O error",
            r"SafetensorError: Error while serializing(?!.*(PermissionDenied|StorageFull))",
        ),
        cause="a checkpoint could not be written to its end, as happens when the disk is full",
        remedy=(
            "look at the free space of that disk: keep fewer checkpoints (checkpoints.keep), or ask"
            " for more (resources.disk)"
        ),
        source="https://github.com/pytorch/pytorch/issues/31620",
    ),
    Rule(
        name="checkpoint-damaged",
        patterns=(
            r"PytorchStreamReader failed|failed finding central directory",
            r"unexpected EOF, expected \d+ more bytes|Error while deserializing header",
            r"HeaderTooLarge|MetadataIncompleteBuffer|InvalidHeaderDeserialization",
            r"UnpicklingError: (invalid load key|pickle data was truncated)",
            r"EOFError: Ran out of input|mmap length .{0,60}greater than file size",
            r"Unable to load weights from pytorch checkpoint",
        ),
        places=(
            r"^(OSError: \[Errno 22\]|EOFError|UnpicklingError)"
            r"[^<]*<[^<]*/torch/serialization\.py:",
        ),
        cause="a checkpoint or file of weights is damaged or not complete",
        remedy=(
            "remove it: resume from an earlier checkpoint, let a cache be made again, or download"
            " it again (a text file of git LFS in its place shows so, too)"
        ),
        source=_SAVING,
    ),
    Rule(
        name="checkpoint-does-not-fit",
        patterns=(
            r"Error\(s\) in loading state_dict|size mismatch for [\w.]+: copying a param",
            r"loaded state dict (contains|has) .{0,60}(parameter group|different number)",
            r"([Mm]issing|[Uu]nexpected) key.{0,400} in state_dict",
            r"[Uu]nexpected key\(s\) in state_dict",
            r"from checkpoint, the shape in current model is|[Ss]hape mismatch for loaded",
            r"checkpoint contains only the (model|weights)",
            r"[Cc]heckpoint .{0,60}(is not compatible|incompatible) with",
            r"different world ?size.{0,80}checkpoint",
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
        remedies=(
            (
                r"[Uu]nexpected key[\s\S]{0,80}?['\"](module|_orig_mod)\.",
                "the weights are those of a wrapped model: strip 'module.' or '_orig_mod.' from"
                " their names, or save the state dict of model.module; the checkpoint itself is"
                " good",
            ),
            (
                r"[Mm]issing key[\s\S]{0,80}?['\"](module|_orig_mod)\.",
                "load the weights into model.module, or before the model is wrapped; the checkpoint"
                " itself is good",
            ),
        ),
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
        source="https://docs.pytorch.org/docs/stable/generated/torch.load.html",
    ),
    Rule(
        name="checkpoint-not-found",
        patterns=(
            r"[Cc]an't find a valid checkpoint|No valid checkpoint found",
            r"Unable to find latest file|[Cc]heckpoint .{0,120}(not found|does not exist)",
        ),
        cause="the checkpoint to resume from does not exist",
        remedy=(
            "look at its address and at what the folder holds; start without it if there is"
            " none yet"
        ),
        source=_SAVING,
    ),
    Rule(
        name="tensors-shared",
        patterns=(
            r"[Ss]ome tensors share memory|contained shared tensors",
            r"Removed shared tensor .{0,200}while saving",
        ),
        unless=r"[Ww]arning",
        cause="safetensors does not save tensors that share their memory, such as tied embeddings",
        remedy=(
            "save with safe_serialization=False (Trainer: save_safetensors=False), by "
            "safetensors.torch.save_model, or "
            "clone one of the tensors before"
        ),
        source="https://huggingface.co/docs/safetensors/torch_shared_tensors",
    ),
)
