"""Metrics in the lines that training libraries print by themselves. Standard library only.

Transformers' Trainer prints `{'loss': 0.25, 'epoch': 1.0}`, whose numbers are texts in newer
versions; programs of Accelerate print `epoch 0: {'accuracy': 0.84}`, and Lightning ends the bar of
an epoch with `v_num=0, train_loss=0.25]`.
"""

from __future__ import annotations

import re

_DICTIONARY = re.compile(r"(?:epoch (?P<epoch>\d+): )?\{(?P<pairs>'.*)\}")
_NUMBER = r"(-?(?:[-+.\deE]+|nan|inf))"
_PAIR = re.compile(rf"'([^'\\]+)': '?{_NUMBER}'?(?:, |$)")
_BAR = re.compile(r"Epoch (?P<epoch>\d+): 100%\|.*\[.*(?:it/s|s/it), (?P<pairs>.*)\]")
_BAR_PAIR = re.compile(rf"([^=,\s]+)={_NUMBER}(?:, |$)")
_VERSION = "v_num"
"""Lightning's number of the run."""


def may_have_metrics(text: str) -> bool:
    """Return whether one of the lines may have numbers, much faster than by looking at each."""
    # Single characters are found ten times as fast as words.
    return ("'" in text and "{'" in text) or ("|" in text and "100%|" in text)


def library_metrics(line: str) -> dict[str, str]:
    """Return the numbers of a line by name, as texts; empty for a line of another form.

    A dictionary without an epoch may be settings.
    """
    for form, pair in ((_DICTIONARY, _PAIR), (_BAR, _BAR_PAIR)):
        match = form.fullmatch(line.rstrip())
        if match is None or pair.sub("", match["pairs"]):
            continue

        values = dict(pair.findall(match["pairs"]))
        values.pop(_VERSION, None)
        if match["epoch"]:
            values.setdefault("epoch", match["epoch"])
        if "epoch" in values:
            return values

    return {}
