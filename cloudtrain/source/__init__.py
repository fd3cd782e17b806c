"""The source archive of a job: its files, the digest that names them, the .tar.gz that holds them.

`scan` reads the disk only (no network, no process), so a plan can name the digest.
Left out is what .gitignore and .cloudtrainignore name, `.git`, caches, virtual environments,
empty folders.
"""

from __future__ import annotations

from cloudtrain.source.archive import pack
from cloudtrain.source.scan import scan
from cloudtrain.source.tree import (
    LIMIT_BYTES,
    PAYLOAD_FOLDER,
    WARN_BYTES,
    Progress,
    SourceEntry,
    SourceTree,
    check_size,
)
from cloudtrain.source.unpack import unpack

__all__ = [
    "LIMIT_BYTES",
    "PAYLOAD_FOLDER",
    "WARN_BYTES",
    "Progress",
    "SourceEntry",
    "SourceTree",
    "check_size",
    "pack",
    "scan",
    "unpack",
]
