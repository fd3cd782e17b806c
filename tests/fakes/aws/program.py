"""The program of the jobs in the imitation's tests; hyper-parameters choose the action.

Standard library only. It is in the channel `code`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

BASE = Path(os.environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml")
PARAMETERS = json.loads((BASE / "input/config/hyperparameters.json").read_text())
RESOURCES = json.loads((BASE / "input/config/resourceconfig.json").read_text())
HOST = RESOURCES["current_host"]
HOSTS = RESOURCES["hosts"]
RANK = HOSTS.index(HOST)


def main() -> int:
    """Run the requested action."""
    print(f"{HOST} of {len(HOSTS)} in {os.environ['TRAINING_JOB_NAME']}", flush=True)
    return {
        "meet": write_outputs,
        "fail": fail,
        "train": train,
        "stubborn": ignore_sigterm,
        "talk": print_lines,
    }[PARAMETERS["do"]]()


def rendezvous() -> None:
    """Let all nodes greet the first one; wait for all of them."""
    address = (
        os.environ.get("CLOUDTRAIN_MASTER_ADDR") or HOSTS[0],
        int(os.environ["CLOUDTRAIN_MASTER_PORT"]),
    )
    if RANK == 0:
        with socket.create_server(address) as server:
            for _ in HOSTS[1:]:
                peer, _ = server.accept()
                with peer:
                    print(f"met {peer.recv(100).decode()}", flush=True)
    else:
        deadline = time.monotonic() + 120
        while True:
            try:
                peer = socket.create_connection(address)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        with peer:
            peer.sendall(HOST.encode())


def write_outputs() -> int:
    """Write a model and an output on each node, once all have met."""
    rendezvous()
    (BASE / "model" / f"{HOST}.txt").write_text((BASE / "input/data/train/part/a.txt").read_text())
    (BASE / "output/data/deep").mkdir()
    (BASE / "output/data/deep" / HOST).write_text(json.dumps(sorted(os.environ)))
    return 0


def fail() -> int:
    """Fail on the last node; the others would run for ever."""
    if HOST in HOSTS[:-1]:
        return train(rendezvous)
    rendezvous()
    (BASE / "output/failure").write_text("the dog ate it" + "." * 2000)
    return 17


def train(ready: Callable[[], None] = lambda: print("ready", flush=True)) -> int:
    """Save a number as a checkpoint, one more than was restored; end at SIGTERM, or at the number
    wished.
    """
    file = BASE / "checkpoints" / f"{HOST}.txt"
    number = int(file.read_text()) + 1 if file.exists() else 1
    file.write_text(str(number))
    print(f"saved {number}", flush=True)
    if number >= int(PARAMETERS.get("until", "1000")):
        return 0

    def leave(signum: int, frame: FrameType | None) -> None:
        (BASE / "checkpoints" / f"{HOST}-stopped.txt").write_text("saved at the stop")
        sys.exit(3)

    signal.signal(signal.SIGTERM, leave)
    ready()
    while True:
        signal.pause()


def ignore_sigterm() -> int:
    """Ignore SIGTERM, with a child that has left the process group."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print("ready", flush=True)
    while True:
        signal.pause()


def print_lines() -> int:
    """Many lines, empty ones and strange ones among them."""
    for number in range(500):
        print(f"line {number}")
    print("\nlast \u00e9\t\x1b[1m words")
    sys.stdout.flush()
    sys.stdout.buffer.write(b"bad \xff byte, no end of line")
    return 0


if __name__ == "__main__":
    sys.exit(main())
