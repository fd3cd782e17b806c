"""A scaling curve as one HTML page: speed-up and throughput over ranks, and the table."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.diagnosis.scaling import ScalingCurve
from cloudtrain.pages.axes import HEIGHT, WIDTH, Scale, frame, x_scale, y_scale
from cloudtrain.pages.document import chart, document, table
from cloudtrain.pages.svg import Point, element, line, picture, words
from cloudtrain.units import format_number


def page(name: str, kind: str, curve: ScalingCurve, rows: Sequence[tuple[str, str]]) -> str:
    """Return the scaling curve of a job as an HTML document.

    `kind`: `strong `, `weak ` or empty. `rows`: a label and a text each, the verdict first.
    """
    charts = [
        chart(
            "Speed-up",
            f"Against {_ranks(curve.base)}; dashed: ideal. Upright lines are 95 % intervals.",
            _speedup(curve),
        ),
        chart("Throughput", "The median of the windows, over all ranks.", _throughput(curve)),
    ]
    body = [
        element("h1", words(f"{name}: {kind}scaling")),
        *(element("p", words(text), class_="verdict") for word, text in rows if word == "verdict"),
        element("main", *charts),
        _table(curve),
        table(("", ""), [row for row in rows if row[0] != "verdict"]),
    ]
    return document(f"{name}: scaling", *body)


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _speedup(curve: ScalingCurve) -> str:
    x = _x(curve)
    most = max(curve.measured) / curve.base
    y = y_scale([0.0, most, *(high for point in curve.points for high in point.interval)])
    ideal = [(x.at(curve.base), y.at(1.0)), (x.at(max(curve.measured)), y.at(most))]
    spreads = [
        line(
            [
                (x.at(point.ranks), y.at(point.interval[0])),
                (x.at(point.ranks), y.at(point.interval[1])),
            ],
            "moment",
        )
        for point in curve.points
    ]
    points = [(x.at(point.ranks), y.at(point.speedup)) for point in curve.points]
    names = frame(x, y, "ranks", "speed-up", sorted(curve.measured))
    drawing = [names, line(ideal, "rung"), _curve(points), *spreads]
    return picture(WIDTH, HEIGHT, "speed-up over the number of ranks", *drawing)


def _throughput(curve: ScalingCurve) -> str:
    x = _x(curve)
    y = y_scale([0.0, *curve.rates.values()])
    points = [(x.at(ranks), y.at(rate)) for ranks, rate in curve.rates.items()]
    names = frame(x, y, "ranks", "samples per second", sorted(curve.measured))
    return picture(
        WIDTH, HEIGHT, "samples per second over the number of ranks", names, _curve(points)
    )


def _curve(points: Sequence[Point]) -> str:
    return line([*points, points[-1]], "curve best")  # one alone is a dot


def _x(curve: ScalingCurve) -> Scale:
    return x_scale(min(curve.measured), max(curve.measured))


def _table(curve: ScalingCurve) -> str:
    header = (
        "ranks",
        "samples/s",
        "speed-up",
        "95 %",
        "efficiency",
        "communication",
        "USD per million samples",
        "runs",
    )
    rows = [
        (
            str(point.ranks),
            format_number(point.samples_per_s),
            f"{point.speedup:.2f}",
            f"{point.interval[0]:.2f} to {point.interval[1]:.2f}",
            f"{point.efficiency:.2f}",
            "not known" if point.communication is None else f"{point.communication:.0%}",
            "" if point.usd_per_million is None else f"{point.usd_per_million:.2f}",
            ", ".join(point.runs),
        )
        for point in curve.points
    ]
    return table(header, rows)
