"""Patterns of `keep` in job.yaml, as client and launcher read them."""

MODEL_PREFIX = "model:"
"""Start of a pattern whose files are kept with the model instead of the output."""
