"""Reads cells of notebooks by the launcher's rules (notebook_code.py, which explains them)."""

from __future__ import annotations

from cloudtrain_launcher.notebook_code import INSTALLS as INSTALLS
from cloudtrain_launcher.notebook_code import plain_code as plain_code
