"""The program `cloudtrain`, also as `python -m cloudtrain`."""

import sys


def entry() -> None:
    """Run the command line. Ctrl-C during its imports is not a bug, and shows no traceback."""
    try:
        from cloudtrain.cli import entry as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    entry()
