"""Command line as `python -m cloudtrain`."""

from cloudtrain.cli import entry

entry()
