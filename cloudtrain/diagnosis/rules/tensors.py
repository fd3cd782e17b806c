"""Rules of tensors of the wrong device, type or shape, and of mistakes with autograd."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

_AUTOGRAD = "https://docs.pytorch.org/docs/stable/notes/autograd.html"

TENSORS = (
    Rule(
        name="devices-mixed",
        patterns=(
            r"[Ee]xpected all tensors to be on the same device|is not on the expected device|should"
            r" be the same|"
            r"Input type .{0,80}and (weight|bias) type",
            r"can't convert .{0,20}device type tensor to numpy|parameters and buffers on"
            r" device|[Ee]xpected object of "
            r"(device|backend) type",
        ),
        unless=r"c10::|(shape|size|length|number)s? .{0,20}should be the same",
        cause="an operation got tensors of different devices or types",
        remedy=(
            "move the model and every tensor of a batch to the rank's device (.to(device)), and use"
            " one dtype or autocast"
        ),
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.device",
    ),
    Rule(
        name="dtypes-mixed",
        patterns=(
            (
                r"expected scalar type|(must|to|should) have the same d?type|expected"
                r" .{0,30}dtype|not implemented for '\w"
            ),
            r"Found dtype \w+ but expected|Input type .{0,40}c10::\w+|following scalar types|"
            r"[Ee]xpected object of scalar type",
            (
                r"can't be cast to the desired output type|source and destination dtypes"
                r" match|cannot be cast to"
            ),
            r"can't convert np\.ndarray of type",
            (
                r"(?i:Error ?[:：].{0,80}only su\w*pp?orts?"
                r" .{0,30}\b(fp16|bf16|fp32|float16|bfloat16|float32|half)\b)"
            ),
        ),
        cause="an operation got a tensor of a type that it does not take",
        remedy=(
            "convert it (.float(), .long()) or run under torch.autocast; labels of cross entropy"
            " are whole numbers"
        ),
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.dtype",
    ),
    Rule(
        name="shapes-differ",
        patterns=(
            r"shapes cannot be multiplied|[Ss]izes of tensors must match|must match the size of"
            r" tensor|"
            r"size of tensor a",
            r"shape '\[.{0,80}\]' is invalid for input|[Ee]xpected input batch_size|mat1 dim 1 must"
            r" match|"
            r"expected input\[.{0,80}\] to have \d+ channels",
            r"Mismatch in shape: |to have the same number of dimensions|The expanded size of the"
            r" tensor|"
            r"size mismatch, (m|got)",
            r"could not be broadcast|could not broadcast|inhomogeneous shape|Given groups=\d+,"
            r" weight of size|"
            r"[Ee]xpected \d+-?[dD] .{0,40}(input|tensor)|EinopsError|view size is not compatible",
            r"more than 1 value per channel when training|[Kk]ernel size can't be greater|Output"
            r" size is too small|"
            r"split_with_sizes expects|mask .{0,40}(shape|size) .{0,60}(match|but)|must match the"
            r" existing size",
            r"is out of bounds for (dimension|axis)|Dimension out of range|too many indices for|"
            r"same number of (samples|"
            r"elements)|inconsistent numbers? of samples|input\.size\(-1\) must be equal|"
            r"must match except in dimension",
            r"non-empty \d+-?D|Padding size should be less|target size .{0,60}(must|different)",
            r"negative dimension|has no dimensions|0-d(im)? tensor|more than one"
            r" (value|element).{0,40}(ambiguous|"
            r"scalar)|only one element tensors",
            r"must be the same as input size|should be of size .{0,60}but|multi-target not"
            r" supported|"
            r"cannot reshape (tensor|array)|cannot be converted to Scalar",
            r"must have (the )?(same )?shapes?\b",
        ),
        cause="an operation got tensors whose shapes do not fit",
        remedy=(
            "compare the shape of a batch with what the first layer expects; look at the line of"
            " the traceback"
        ),
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/notes/broadcasting.html",
    ),
    Rule(
        name="changed-in-place",
        patterns=(
            r"has been modified by an inplace operation|marked (as )?ready (only )?(once|twice)|"
            r"backward through the graph a second time|[Rr]ecomputed values for the following"
            r" tensors",
            r"leaf [Vv]ariable that requires grad|is a view and (is|its base).{0,80}inplace",
        ),
        cause="autograd needs a value that was changed or freed before",
        remedy=(
            "replace the operation in place (+=, relu_), call backward once per forward, and use"
            " checkpoint(use_reentrant=False) with DDP; torch.autograd.set_detect_anomaly(True)"
            " names the operation"
        ),
        restart="after a change",
        source=_AUTOGRAD,
    ),
    Rule(
        name="no-gradient",
        patterns=(
            (
                r"does not require grad and does not have a grad_fn|optimizer got an empty"
                r" parameter list"
            ),
            (
                r"doesn't have any parameters that require a gradient|can be implicitly created"
                r" only for scalar outputs"
            ),
            (
                r"None of the inputs have requires_grad=True|floating point .{0,40}can require"
                r" gradients"
            ),
        ),
        unless=r"Warning|warnings\.warn",
        cause=(
            "the loss cannot be differentiated: it does not depend on trained values, or is not"
            " one number"
        ),
        remedy=(
            "see that parameters have requires_grad, that the loss is one number (.mean()), and"
            " that it is not computed under no_grad or detached; with LoRA and gradient"
            " checkpointing call model.enable_input_require_grads()"
        ),
        restart="after a change",
        source=_AUTOGRAD,
    ),
    Rule(
        name="mixed-precision-misused",
        patterns=(
            (
                r"Attempting to unscale FP16 gradients|No inf checks were recorded|unscale_\(\)"
                r" (has already|is being)"
            ),
        ),
        cause="the scaler of mixed precision is used in a way that it does not allow",
        remedy=(
            "keep trained parameters in fp32 (autocast casts them), and call scale, unscale_, step"
            " and update once each per step"
        ),
        restart="after a change",
        source="https://docs.pytorch.org/docs/stable/notes/amp_examples.html",
    ),
)
