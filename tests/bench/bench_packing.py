"""Packing 10,000 small files against `tar | gzip`: `python tests/bench/bench_packing.py [--json]`.

Rounds alternate between the two. "first time" is scan without a cache + pack into an empty store;
"unchanged" is scan with a warm cache + the archive already there. CPU counts this process; for the
reference, both children.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cloudtrain.source.scan import pack, scan
from cloudtrain.source.tree import SourceTree

FILES = 10_000
IGNORE = "__pycache__/\n*.egg-info/\nbuild/\n/dist\n*.log\n*.ckpt\n.env\n.mypy_cache/\noutputs/**/tmp\n!keep.log\n"


def build(root: Path, files: int) -> int:
    """Source-like files (words of a real module, log-normal sizes around 2 kB), 50 a folder; bytes
    in all.
    """
    rng = random.Random(7)
    words = Path(statistics.__file__).read_text().split(" ")
    total = 0
    root.mkdir()
    (root / ".gitignore").write_text(IGNORE)
    for number in range(files):
        folder = root / f"package_{number // 1000}" / f"module_{number // 50}"
        if number % 50 == 0:
            folder.mkdir(parents=True)
        start = rng.randrange(len(words))
        size = int(rng.lognormvariate(7.4, 0.9))
        text = " ".join(words[start:] + rng.choices(words, k=size // 4))[:size]
        total += (folder / f"part_{number}.py").write_bytes(text.encode())
    return total


def measure(action: Callable[[], object], who: int) -> tuple[float, float]:
    """Wall and CPU seconds of one call; `who` is whose CPU counts."""
    before = resource.getrusage(who)
    start = time.perf_counter()
    action()
    wall = time.perf_counter() - start
    after = resource.getrusage(who)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def tar_gzip(root: Path, output: Path) -> None:
    """The reference, without a shell."""
    with output.open("wb") as stream:
        tar = subprocess.Popen(["tar", "cf", "-", "."], cwd=root, stdout=subprocess.PIPE)
        gzip = subprocess.Popen(["gzip"], stdin=tar.stdout, stdout=stream)
        if tar.stdout is not None:
            tar.stdout.close()
        if gzip.wait() or tar.wait():
            raise RuntimeError("tar | gzip failed")


def run(files: int, rounds: int) -> dict[str, object]:
    """Median ratios, ours divided by the reference of the same round."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        root = place / "source"
        store = place / "store"
        cache = place / "cache"
        total = build(root, files)
        # A file younger than this is never trusted to be unchanged; nobody plans twice within it.
        time.sleep(2.5)

        def pack_tree() -> SourceTree:
            tree = scan(root, None, cache)
            pack(tree, store, None, cache)
            return tree

        tree = pack_tree()
        ratios: dict[str, list[tuple[float, float]]] = {"first time": [], "unchanged": []}
        seconds: dict[str, list[float]] = {"tar | gzip": [], "first time": [], "unchanged": []}
        for _ in range(rounds):
            reference = measure(
                lambda: tar_gzip(root, place / "reference.tar.gz"), resource.RUSAGE_CHILDREN
            )
            seconds["tar | gzip"].append(reference[0])
            shutil.rmtree(store)
            shutil.rmtree(cache)
            for name in ratios:
                wall, cpu = measure(pack_tree, resource.RUSAGE_SELF)
                seconds[name].append(wall)
                ratios[name].append((wall / reference[0], cpu / reference[1]))
        reference_bytes = (place / "reference.tar.gz").stat().st_size
        packed_bytes = (store / f"{tree.digest}.tar.gz").stat().st_size
    return {
        "files": tree.files_count,
        "bytes": total,
        "rounds": rounds,
        "seconds": {name: round(statistics.median(values), 4) for name, values in seconds.items()},
        "wall_ratio": {
            name: round(statistics.median(w for w, _ in pairs), 3) for name, pairs in ratios.items()
        },
        "cpu_ratio": {
            name: round(statistics.median(c for _, c in pairs), 3) for name, pairs in ratios.items()
        },
        "size_ratio": round(packed_bytes / reference_bytes, 3),
        "bars": {"first time": 1.2, "unchanged": 0.3},
    }


def main() -> None:
    """Prints one table row per case, or the whole result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print only JSON")
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    result = run(options.files, options.rounds)
    if options.json:
        print(json.dumps(result))
        return
    print(
        f"packing {result['files']} files, {result['bytes']} bytes, {result['rounds']} rounds,"
        " against tar | gzip"
    )
    print("| case | wall | cpu | bar |")
    print("|---|---|---|---|")
    walls = result["wall_ratio"]
    cpus = result["cpu_ratio"]
    bars = result["bars"]
    if isinstance(walls, dict) and isinstance(cpus, dict) and isinstance(bars, dict):
        for name in walls:
            print(f"| packing, {name} | {walls[name]} x | {cpus[name]} x | {bars[name]} x |")
    print(f"archive: {result['size_ratio']} x the bytes; medians in seconds: {result['seconds']}")


if __name__ == "__main__":
    main()
