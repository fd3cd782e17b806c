"""The version of cloudtrain, which pyproject.toml reads here."""

__version__ = "0.3.0"
