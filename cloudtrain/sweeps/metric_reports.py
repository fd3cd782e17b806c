"""Counting a metric's reports, as the launcher has it: job and client mean the same report by a
rung.
"""

from __future__ import annotations

from cloudtrain_launcher.metric_reports import MetricReports

__all__ = ["MetricReports"]
