"""`python FOLDER` starts this node's launcher, independent of a user's module of the same name."""

import sys
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036  (an image may have an older one)
    sys.exit(
        f"cloudtrain: a job needs Python 3.10 or newer; {sys.executable} is {sys.version.split()[0]}:"
        " use an image with a newer Python"
    )

sys.path.insert(1, str(Path(__file__).resolve().parent / "job"))

from cloudtrain_launcher.launch import main

if __name__ == "__main__":
    sys.exit(main())
