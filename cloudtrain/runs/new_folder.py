"""Atomic creation of the folder of a run or a sweep, with its documents."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cloudtrain.errors import RunExists
from cloudtrain.runs.files import encode_json, make_private_folder, private_opener, storing


@contextmanager
def new_folder(path: Path, documents: Mapping[str, str], kind: str) -> Iterator[Path]:
    """Yield a draft folder with these documents, renamed to `path` at the end of the block.

    `kind` is "run" or "sweep", for messages. Raise RunExists if the path is taken, StorageError if
    the disk refuses.
    """
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    with storing(path):
        make_private_folder(draft)
        try:
            for name, text in documents.items():
                with open(draft / name, "wb", opener=private_opener) as file:
                    file.write(encode_json(text))
            yield draft
            draft.rename(path)
        except OSError as error:
            import shutil

            shutil.rmtree(draft, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise RunExists(
                    f"{kind} {path.name} exists already", hint=f"cloudtrain status {path.name}"
                ) from None
            raise
