"""Print how many recorded exchanges the imitations reproduce: `make fidelity`."""

from __future__ import annotations

from collections import Counter

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


if __name__ == "__main__":
    main()
