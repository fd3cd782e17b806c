"""Forecasts in words."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable

from cloudtrain.runs.forecast import Forecast, Span
from cloudtrain.units import format_duration

UNSEEN = {"evaluating": "evaluation", "saving": "checkpoint"}
ENDS = {"sure": "will stop", "likely": "will probably stop", "possible": "may stop"}


def in_all(found: Forecast) -> str:
    """Return `1 h 52 min in all (1 h 45 min to 2 h 3 min), 11.40 USD (10.70 to 12.50)`."""
    text = (
        f"{format_duration(found.total.likely)} in all ({_interval(found.total, format_duration)})"
    )
    if found.usd is not None:
        text += f", {found.usd.likely:.2f} USD ({_interval(found.usd, lambda usd: f'{usd:.2f}')})"
    return text


def caveat(found: Forecast) -> str:
    """Return the reason for a wide interval, such as `no evaluation was seen yet`, or ""."""
    kinds = " and no ".join(UNSEEN[kind] for kind in found.unseen)
    trend = (
        f"steps get {found.trend}, and the interval reaches to where that leads"
        if found.trend
        else ""
    )
    return "; ".join(filter(None, (f"no {kinds} was seen yet" if kinds else "", trend)))


def shown(found: Forecast) -> str:
    """Return the forecast in one line with its caveat."""
    return "; ".join(filter(None, (in_all(found), caveat(found))))


def limit_warning(found: Forecast) -> str:
    """Return the effect of a limit and the limit that the run needs, or ""."""
    ending = found.ending
    if ending is None:
        return ""
    limit = ending.limit or "the platform's time limit"
    at = f"after {format_duration(ending.seconds)}, at about step {ending.step} of {found.steps}"
    return f"{limit} {ENDS[ending.certainty]} this run {at}: it needs {in_all(found)}"


def told_once(found: Forecast, run_id: str) -> str:
    """Return the warning of a likely limit with the next command, or ""."""
    if found.ending is None or found.ending.certainty == "possible":
        return ""
    raised = shlex.join(["cloudtrain", "rerun", run_id, "--set", raised_limit(found)])
    return f"{limit_warning(found)}. To have it end: cloudtrain stop {run_id}, then {raised}"


def raised_limit(found: Forecast) -> str:
    """Return `limits.max_cost=13 USD`, enough for the end of the interval, or ""."""
    if found.ending is None:
        return ""
    needs = found.ending.needs
    if found.ending.limit == "limits.max_cost":
        return f"limits.max_cost={math.ceil(needs) if needs >= 10 else math.ceil(needs * 100) / 100:g} USD"
    unit = 3600 if needs > 86400 else 60 if needs > 60 else 1
    return f"limits.max_runtime={format_duration(math.ceil(needs / unit) * unit)}"


def _interval(span: Span, write: Callable[[float], str]) -> str:
    return f"{write(span.low)} to {write(span.high)}"
