"""Packing 10,000 small files against `tar | gzip`: `python tests/bench/bench_packing.py`.

"first time" is scan without a cache + pack into an empty store; "unchanged" is scan with a warm
cache + the archive already there. CPU counts this process; for the reference, both children.
"""

from __future__ import annotations

import random
import resource
import shutil
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cloudtrain.source.pack import pack
from cloudtrain.source.scan import scan
from tests.bench.measure import Comparison, Cost, compare, cost, options, report, workplace

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


def pack_tree(root: Path, place: Path) -> Cost:
    """Scan and pack a folder; return the cost."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    pack(scan(root, None, place / "cache"), place / "store", None, place / "cache")
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def pack_anew(root: Path, place: Path) -> Cost:
    """Do so without cache and store."""
    for folder in ("cache", "store"):
        shutil.rmtree(place / folder, ignore_errors=True)
    return pack_tree(root, place)


def main() -> None:
    """Print the rows."""
    parsed = options(rounds=5)
    with workplace() as (place, env):
        root = place / "source"
        archive = place / "reference.tar.gz"
        total = build(root, FILES)
        # A file younger than this is never trusted to be unchanged; nobody plans twice within it.
        time.sleep(2.5)
        comparisons = [
            compare(
                Comparison(
                    f"packing {FILES} files, {name}", "tar | gzip", {"wall": bar, "cpu": bar}
                ),
                lambda pack_files=pack_files: pack_files(root, place),  # type: ignore[misc]
                lambda: cost(["tar", "-czf", archive, "."], env, root),
                parsed.rounds,
                warm_ups=1,
            )
            for name, bar, pack_files in (
                ("first time", 1.2, pack_anew),
                ("unchanged", 0.3, pack_tree),
            )
        ]
        (packed,) = (place / "store").glob("*.tar.gz")
        size = f"{packed.stat().st_size / archive.stat().st_size:.3f} x, of {total} bytes"
        comparisons[0].notes["archive"] = size
    report(comparisons, parsed.json)


if __name__ == "__main__":
    main()
