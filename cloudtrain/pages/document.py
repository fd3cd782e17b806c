"""Documents of HTML from templates that escape every text of a job."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from cloudtrain.shown_text import shown
from cloudtrain.units import format_duration, format_number

TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, **values: object) -> str:
    """Return a template as an HTML document, with these values in it."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=as_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"number": format_number, "duration": format_duration}

    return environment.get_template(template).render(values)


def as_text(value: object) -> str:
    """Return a value as text of a document, before it is escaped.

    A float is a position in a chart and has one digit. A text is shown as on a terminal: without
    secrets, and with escapes for characters that XML forbids or that reorder text.
    """
    if isinstance(value, Markup):
        return value
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")

    return shown(str(value))
