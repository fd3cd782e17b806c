"""Print how many recorded exchanges the imitations reproduce: `make fidelity`.

`python -m tests.fidelity FILE ...` does the same with other recordings of the same form.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from tests.fakes.azure.recorded import DATA
from tests.fidelity import aws
from tests.fidelity.azure_answers import AZURE, reason, verdicts


def main() -> None:
    """Replay all files and print a line for each, then each difference."""
    for path in [Path(name) for name in sys.argv[1:]] or [DATA, aws.DATA]:
        first = json.loads(path.read_text().partition("\n")[0])
        if "method" in first:
            _exchanges(path)
        else:
            _observations(path)


def _exchanges(path: Path) -> None:
    """Print how many requests to Azure ML are answered as recorded, and the reasons for others."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for verdict in verdicts(path):
        kept = [reason(AZURE, verdict.call, difference) for difference in verdict.differences]
        if not kept:
            counts["reproduced"] += 1
        elif all(kept):
            counts["on purpose"] += 1
            reasons.update(set(kept))
        else:
            counts["different"] += 1
            print(f"{verdict.call}: {'; '.join(verdict.differences)}")
    print(
        f"azure: {counts['reproduced']} of {counts.total()} recorded exchanges reproduced,"
        f" {counts['on purpose']} differ on purpose, {counts['different']} otherwise"
    )
    for text, number in reasons.most_common():
        print(f"  {number:3} {text}")


def _observations(path: Path) -> None:
    """Print how many observations of SageMaker the client reads rightly, by their kind."""
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for observation in aws.observations(path):
        wrong = aws.differences(observation)
        result = "not read" if wrong is None else "wrong" if wrong else "right"
        counts[result] += 1
        if result != "not read":
            kinds[observation.kind] += 1
        for difference in wrong or ():
            print(f"{observation.kind} {observation.number}: {difference}")
    print(
        f"aws: {counts['right']} of {counts['right'] + counts['wrong']} observations read rightly,"
        f" {counts['not read']} are of kinds that the client does not read"
    )
    for kind, number in kinds.most_common():
        print(f"  {number:3} {kind}")


if __name__ == "__main__":
    main()
