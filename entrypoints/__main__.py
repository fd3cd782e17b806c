"""`python FOLDER` starts this node's launcher: run as a folder, so that a user's module of the same
name never wins.
"""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent / "job"))

from cloudtrain_launcher.launch import main

if __name__ == "__main__":
    sys.exit(main())
