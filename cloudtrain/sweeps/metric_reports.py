"""Counting a metric's reports, as the launcher has it: job and client mean the same report by a
rung.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudtrain_launcher.metric_reports import MetricReports
else:
    from cloudtrain.bundle import launcher_module

    MetricReports = launcher_module("metric_reports").MetricReports

__all__ = ["MetricReports"]
