"""The output of `cloudtrain check --memory`."""

from __future__ import annotations

from cloudtrain.submission.memory import MemoryReport, gib

UNPROVEN = "CUDA, NCCL and libraries by their documentation, not measured on this GPU"


def memory_lines(report: MemoryReport) -> list[str]:
    """Return the need with its interval, the comparison with the machine, and remedies."""
    if report.reason:
        return [f"memory: no estimate: {report.reason}"]
    of = "GPU" if report.gpu else "process"
    lines = [
        f"memory per {of}: about {gib(report.expected)} ({gib(report.low)} to"
        f" {gib(report.high)}){_against(report)}"
    ]
    parts = ", ".join(
        f"{name} {size / 2**20:,.0f} MiB" for name, size in (report.parts or {}).items()
    )
    remainder = f"; the rest: {UNPROVEN}" if report.gpu else "; the rest: the process with torch"
    lines.append(f"  tensors: {parts}{remainder}")
    if report.remedies:
        lines.append("  what fits:")
        lines += [f"    {remedy}" for remedy in report.remedies]
    elif report.verdict not in ("fits", ""):
        lines.append("  no sure remedy: smaller micro-batches, recomputing and sharding were tried")
    return lines


def _against(report: MemoryReport) -> str:
    if not report.verdict:
        return "; how much the machine has is not known here"
    has = f" of {gib(report.memory)}{f' ({report.gpu})' if report.gpu else ''}"
    if report.verdict == "fits":
        return f"{has}: fits, at least {gib(report.memory - report.high)} are free"
    if report.verdict == "may not fit":
        return f"{has}: may not fit, by up to {gib(report.high - report.memory)}"
    return f"{has}: does not fit, by about {gib(report.expected - report.memory)}"
