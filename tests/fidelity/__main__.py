"""Print how many recorded exchanges the imitations reproduce: `make fidelity`."""

from __future__ import annotations

from collections import Counter

from tests.fidelity import aws
from tests.fidelity.azure_answers import verdicts
from tests.fidelity.differences import AZURE, reason


def main() -> None:
    """Replay everything and print a line per cloud, then each difference."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for verdict in verdicts():
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
    _observations()


def _observations() -> None:
    """Print how many observations of SageMaker the client reads rightly, by their kind."""
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for observation in aws.observations():
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
