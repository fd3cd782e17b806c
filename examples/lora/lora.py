"""Fine-tunes a language model of Hugging Face with LoRA, on the lines of a .jsonl file with `text`.

The input `model` is a folder as `save_pretrained` writes it, with its tokenizer; the input `texts`
has train.jsonl and val.jsonl. It needs transformers, peft and datasets. Only the adapters are
trained.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling

MAX_TOKENS = 128
"""Longer texts are cut off."""


def model() -> nn.Module:
    """The model with adapters; it returns its own loss, since the batches have labels."""
    base = AutoModelForCausalLM.from_pretrained(os.environ["CLOUDTRAIN_INPUT_MODEL"])
    adapted: nn.Module = get_peft_model(
        base, LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear")
    )
    return adapted


def data() -> dict[str, Any]:
    """Training and validation data sets, and what pads the samples of a batch to one length."""
    tokenizer = AutoTokenizer.from_pretrained(os.environ["CLOUDTRAIN_INPUT_MODEL"])
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token

    def tokenize(rows: Any) -> Any:
        return tokenizer(rows["text"], truncation=True, max_length=MAX_TOKENS)

    texts = Path(os.environ["CLOUDTRAIN_INPUT_TEXTS"])
    parts = {name: Dataset.from_json(str(texts / f"{file}.jsonl")) for name, file in
             (("train", "train"), ("validation", "val"))}  # fmt: skip
    rows = {
        name: part.map(tokenize, batched=True, remove_columns=part.column_names)
        for name, part in parts.items()
    }
    return {**rows, "collate": DataCollatorForLanguageModeling(tokenizer, mlm=False)}
