"""The program of the jobs in the imitation's tests; arguments choose the action and the folders.

Standard library only. It is in the job's code.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import FrameType

OUT = Path(sys.argv[2])
MORE = sys.argv[3:]
RANK = int(os.environ.get("RANK", "0"))
SIZE = int(os.environ.get("WORLD_SIZE", "1"))


def main() -> int:
    """Run the requested action."""
    print(f"process {RANK} of {SIZE} in {os.environ['AZUREML_RUN_ID']}", flush=True)
    actions = {
        "meet": write_outputs,
        "fail": fail,
        "train": train,
        "stubborn": ignore_sigterm,
        "talk": print_lines,
        "ask": read_secret,
    }
    return actions[sys.argv[1]]()


def rendezvous() -> None:
    """Let all processes greet the first one; wait for all of them."""
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if RANK == 0:
        with socket.create_server(address) as server:
            for _ in range(1, SIZE):
                peer, _ = server.accept()
                with peer:
                    print(f"met {peer.recv(100).decode()}", flush=True)
        return
    deadline = time.monotonic() + 120
    while True:
        try:
            peer = socket.create_connection(
                address, source_address=(os.environ["CLOUDTRAIN_NODE_ADDR"], 0)
            )
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    with peer:
        peer.sendall(f"{RANK} from {os.environ['CLOUDTRAIN_NODE_ADDR']}".encode())


def write_outputs() -> int:
    """Each process leaves what it was given, once all have met."""
    rendezvous()
    folder = Path(MORE[0])
    text = folder.read_text() if folder.is_file() else (folder / "a.txt").read_text()
    (OUT / "deep").mkdir(exist_ok=True)
    (OUT / "deep" / f"{RANK}.json").write_text(
        json.dumps({"data": text, "env": sorted(os.environ), "cwd": str(Path.cwd())})
    )
    return 0


def fail() -> int:
    """Fail in the last process; the others would run for ever."""
    if RANK < SIZE - 1:
        return train(rendezvous)
    if SIZE > 1:
        rendezvous()
    print("the dog ate it", flush=True)
    return 17


def train(ready: Callable[[], None] = lambda: print("ready", flush=True)) -> int:
    """Save a number, one more than was found; end at SIGTERM, or at the number wished."""
    file = OUT / f"{RANK}.txt"
    number = int(file.read_text()) + 1 if file.exists() else 1
    file.write_text(str(number))
    print(f"saved {number}", flush=True)
    if number >= int(MORE[0] if MORE else "1000"):
        return 0

    def leave(signum: int, frame: FrameType | None) -> None:
        (OUT / f"{RANK}-stopped.txt").write_text("saved at the stop")
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


def read_secret() -> int:
    """Fetch a secret from the Key Vault, as the machine's own identity."""
    vault, name = MORE
    env = os.environ
    query = f"api-version=2017-09-01&resource=https://vault.azure.net&clientid={env['DEFAULT_IDENTITY_CLIENT_ID']}"
    identity = urllib.request.Request(
        f"{env['MSI_ENDPOINT']}?{query}", headers={"secret": env["MSI_SECRET"]}
    )
    with urllib.request.urlopen(identity) as answer:
        token = json.load(answer)["access_token"]
    secret = urllib.request.Request(
        f"{vault}/secrets/{name}?api-version=7.4", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(secret) as answer:
        (OUT / "secret.txt").write_text(json.load(answer)["value"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
