"""The provider keeps to the protocol, as cloudtrain's conformance suite tests it. Run it with
pytest.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloudtrain.testing.conformance import (
    GREETING,
    GREETING_FILE,
    SECRET,
    Platform,
    ProviderConformance,
)

# Stands for ssh: past the options and the host, the words are one command of a shell. Its machine
# is this one.
STAND_IN = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift 2; cd /; exec sh -c "$*"
"""


class TestSsh(ProviderConformance):
    """All checks of the suite."""

    @classmethod
    @contextmanager
    def platform(cls, folder: Path) -> Iterator[Platform]:
        """This machine; names with spaces belong to the test."""
        data = folder / "input data"
        for name, text in (
            ("bin/ssh", STAND_IN),
            (f"{data}/{GREETING_FILE}", GREETING),
            ("a token", SECRET),
        ):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        (folder / "bin" / "ssh").chmod(0o755)
        yield Platform(
            provider="ssh",
            job={
                "ssh": {"host": "gpu-box", "folder": f"{folder}/runs of ssh"},
                "image": {"ssh": sys.prefix},
            },
            env={"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"},
            input=f"ssh://{data}",
            secret=f"file:{folder / 'a token'}",
        )
