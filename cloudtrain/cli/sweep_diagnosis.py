"""The output of `cloudtrain diagnose SWEEP`: why trials failed."""

from __future__ import annotations

from cloudtrain.cli.output import command, count, print_json, print_output
from cloudtrain.cli.terminal import indented, one_line
from cloudtrain.sweeps.failures import FailedTrials, failed_trials
from cloudtrain.sweeps.sweep import Sweep

MAX_NUMBERS = 12


def show_failed_trials(sweep: Sweep, *, as_json: bool) -> bool:
    """Show why trials failed, and return whether any did.

    Raise StorageError if a run cannot be read.
    """
    groups = failed_trials(sweep)
    if not groups:
        return False
    if as_json:
        print_json({"sweep": sweep.id, "failed": [group.to_json() for group in groups]})
        return True
    failed = sum(len(group.trials) for group in groups)
    all_trials = len(sweep.status().trials)
    print_output(f"{sweep.id}: {failed} of {count(all_trials, 'trial')} failed")
    for group in groups:
        print_output("\n".join(_lines(group)))
    return True


def _lines(group: FailedTrials) -> list[str]:
    diagnosis = group.diagnosis
    numbers = ", ".join(map(str, group.trials[:MAX_NUMBERS]))
    more = ", …" if len(group.trials) > MAX_NUMBERS else ""
    rows = [("cause", diagnosis.cause), ("trials", f"{numbers}{more}")]
    rows += [("set apart", text) for text in group.set_apart_by]
    if diagnosis.evidence:
        rows.append(("evidence", f"{diagnosis.evidence[0].place}  {diagnosis.evidence[0].text}"))
    if diagnosis.remedy:
        rows.append(("remedy", diagnosis.remedy))
    if group.runs[0]:
        rows.append(("more", command("diagnose", group.runs[0])))
    shown = [f"    {name:<11} {indented(one_line(text), 16)}" for name, text in rows]
    return [f"  {count(len(group.trials), 'trial')}", *shown]
