"""`python -m cloudtrain` is the command line too."""

from cloudtrain.cli import entry

entry()
