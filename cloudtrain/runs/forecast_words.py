"""Text of forecasts and of the limits that they exceed."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable

from cloudtrain.runs.forecast import Forecast, Span
from cloudtrain.units import format_duration

UNSEEN = {"evaluating": "evaluation", "saving": "checkpoint"}
ENDS = {"sure": "will stop", "likely": "will probably stop", "possible": "may stop"}


def in_all(forecast: Forecast) -> str:
    """Return `1 h 52 min in all (1 h 45 min to 2 h 3 min), 11.40 USD (10.70 to 12.50)`."""
    text = f"{format_duration(forecast.total.likely)} in all ({_interval(forecast.total, format_duration)})"
    if forecast.usd is not None:
        text += (
            f", {forecast.usd.likely:.2f} USD ({_interval(forecast.usd, lambda usd: f'{usd:.2f}')})"
        )
    return text


def caveat(forecast: Forecast) -> str:
    """Return the reason for a wide interval, such as `no evaluation was seen yet`, or ""."""
    kinds = " and no ".join(UNSEEN[kind] for kind in forecast.unseen)
    trend = (
        f"steps get {forecast.trend}, and the interval reaches to where that leads"
        if forecast.trend
        else ""
    )
    return "; ".join(filter(None, (f"no {kinds} was seen yet" if kinds else "", trend)))


def shown(forecast: Forecast) -> str:
    """Return the forecast in one line with its caveat."""
    return "; ".join(filter(None, (in_all(forecast), caveat(forecast))))


def limit_warning(forecast: Forecast) -> str:
    """Return the effect of a limit and the limit that the run needs, or ""."""
    ending = forecast.ending
    if ending is None:
        return ""
    limit = ending.limit or "the platform's time limit"
    at = f"after {format_duration(ending.seconds)}, at about step {ending.step} of {forecast.steps}"
    return f"{limit} {ENDS[ending.certainty]} this run {at}: it needs {in_all(forecast)}"


def told_once(forecast: Forecast, run_id: str) -> str:
    """Return the warning of a likely limit with the next command, or ""."""
    if forecast.ending is None or forecast.ending.certainty == "possible":
        return ""
    raised = shlex.join(["cloudtrain", "rerun", run_id, "--set", raised_limit(forecast)])
    return f"{limit_warning(forecast)}. To have it end: cloudtrain stop {run_id}, then {raised}"


def raised_limit(forecast: Forecast) -> str:
    """Return `limits.max_cost=13 USD`, enough for the end of the interval, or ""."""
    if forecast.ending is None:
        return ""
    needs = forecast.ending.needs
    if forecast.ending.limit == "limits.max_cost":
        usd = math.ceil(needs) if needs >= 10 else math.ceil(needs * 100) / 100
        return f"limits.max_cost={usd:g} USD"
    unit = 1
    if needs > 86400:
        unit = 3600
    elif needs > 60:
        unit = 60
    return f"limits.max_runtime={format_duration(math.ceil(needs / unit) * unit)}"


def _interval(span: Span, write: Callable[[float], str]) -> str:
    return f"{write(span.low)} to {write(span.high)}"
