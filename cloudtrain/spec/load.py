"""job.yaml -> JobSpec: strict, with every mistake at once, each at its line.

Three readings of the same values add up: the models (types, unknown keys), what contradicts what,
and what the disk says (entrypoint, source, local inputs).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cloudtrain.errors import SpecError
from cloudtrain.issues import Issue, Keys, did_you_mean, dotted
from cloudtrain.spec.contradictions import contradictions
from cloudtrain.spec.dependencies import OFF
from cloudtrain.spec.entrypoint import entrypoint_problem
from cloudtrain.spec.fields import NAME
from cloudtrain.spec.model import JobSpec, section_model, section_models, spec_model
from cloudtrain.spec.model_errors import issues_of
from cloudtrain.spec.plain_secrets import hide_setting
from cloudtrain.spec.raw_values import mapping_of
from cloudtrain.spec.sources import FlagText, job_folder, read_source, with_arguments
from cloudtrain.spec.sweep import Sweep
from cloudtrain.spec.varied_settings import path_of, trial_issues
from cloudtrain.spec.yaml_document import Document, parse_scalar


def load_spec(
    path: Path, overrides: Sequence[str] = (), arguments: Sequence[str] = ()
) -> tuple[JobSpec, Document]:
    """Read a spec file, a folder's job.yaml or a script, with overrides such as `resources.nodes=4`
    laid over it.

    Returns the spec and the document with every value's origin. `arguments`: of the program, after
    those of the spec. SpecError lists all mistakes; UsageError when the file itself cannot be read.
    """
    document = read_source(path)
    document = _laid_over(document, [*with_arguments(document, arguments), *overrides])
    return spec_from_document(document, job_folder(path))


def spec_from_values(
    values: Mapping[str, Any],
    folder: Path,
    overrides: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> tuple[JobSpec, Document]:
    """The same for a spec written in Python as plain dicts; relative paths count from `folder`."""
    try:
        text = json.dumps(dict(values), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(
            [Issue((), f"holds what no job.yaml can say: {error}", origin="spec")]
        ) from None
    document = Document(values=json.loads(text), name="spec", text=text)
    document = _laid_over(document, [*with_arguments(document, arguments), *overrides])
    return spec_from_document(document, folder.resolve())


def _laid_over(document: Document, overrides: Sequence[str]) -> Document:
    """Lay overrides over a document. A setting that one of them gives a value is not searched any
    more.
    """
    found = override(document, overrides)
    sweep = mapping_of(found.values, "sweep")
    space = mapping_of(sweep, "space")
    fixed = {
        tuple(part.strip() for part in text.partition("=")[0].split(".")) for text in overrides
    }
    varied = {key: value for key, value in space.items() if path_of(str(key)) not in fixed}
    if len(varied) == len(space):
        return found
    if varied:
        return replace(found, values={**found.values, "sweep": {**sweep, "space": varied}})
    return replace(
        found, values={key: value for key, value in found.values.items() if key != "sweep"}
    )


def override(document: Document, overrides: Sequence[str]) -> Document:
    """Lay `key.path=value` texts over a document; their origin is the flag, `--set` unless they
    remember another.

    A text that cannot be laid over it is among the `mistakes` of the result.
    """
    values = _copy(document.values)
    origins = dict(document.origins)
    issues = []
    for text in overrides:
        path, equals, value = text.partition("=")
        is_secret = path.strip().startswith("secrets") or hide_setting(path.strip(), value) != value
        flag = f"--set {path}=…" if is_secret else f"--set {text}"
        flag = text.flag if isinstance(text, FlagText) else flag
        keys: Keys = tuple(part.strip() for part in path.split("."))
        if not equals or not all(keys):
            hint = "--set resources.nodes=4"
            issues.append(Issue((), "expected KEY.PATH=VALUE", hint, origin=flag))
            continue
        if re.search("[\ud800-\udfff]", text):
            issues.append(Issue((), "is not UTF-8 text", origin=f"--set {path}"))
            continue
        inner = values
        for depth, key in enumerate(keys[:-1], 1):
            if isinstance(inner.get(str(key)), list):
                message = "is a list, which has no named parts"
                hint = f"--set {dotted(keys[:depth])}='[…]' replaces it"
                issues.append(Issue(keys[:depth], message, hint, origin=flag))
                break
            if not isinstance(inner.get(str(key)), dict):
                inner[str(key)] = {}
                origins[keys[:depth]] = flag
            inner = inner[str(key)]
        else:
            inner[str(keys[-1])] = parse_scalar(value)
            origins = {k: v for k, v in origins.items() if k[: len(keys)] != keys} | {keys: flag}
    return Document(
        values=values,
        origins=origins,
        name=document.name,
        text=document.text,
        overrides=(*document.overrides, *overrides),
        mistakes=(*document.mistakes, *issues),
    )


def spec_from_document(
    document: Document, folder: Path, *, look: bool = True
) -> tuple[JobSpec, Document]:
    """The spec of a document; relative paths count from `folder`.

    `look`: whether the disk must hold what the spec names; a rerun brings its source along instead.
    """
    spec, found = _read(document.values, folder, look=look)
    if look and mapping_of(
        document.values, "sweep"
    ):  # a rerun, and a trial, is of a spec that was found right
        found += trial_issues(
            document.values, lambda text: _issues_of_trial(document, text, folder)
        )
    if spec is None or found or document.mistakes:
        if look:
            wrong = {issue.path[:2] for issue in found}
            missing = _missing_inputs(document.values, folder)
            found += [issue for issue in missing if issue.path not in wrong]
        issues = [issue.at(document.origin(issue.path)) for issue in dict.fromkeys(found)]
        issues += document.mistakes
        raise SpecError(sorted(issues, key=_by_place))
    return spec, document


def _read(
    values: Mapping[str, Any], folder: Path, *, look: bool
) -> tuple[JobSpec | None, list[Issue]]:
    """The spec, and all that is wrong with it; None where the models refuse it."""
    found: list[Issue] = []
    if "name" not in values:
        values = {"name": name_from_folder(folder), **values}
    spec = None
    sections = {key: model for key in values if (model := section_model(key))}
    try:
        with _without_plugins():
            spec = spec_model(sections).model_validate(values)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            found += issues_of(item, lambda: spec_model(section_models()))
    found += contradictions(values)
    if isinstance(sweep := values.get("sweep"), dict):
        found += Sweep.contradictions(sweep, values)
    for key, section in sections.items():
        found += section.contradictions(mapping_of(values, key), values)
    found += _on_disk(values, folder) if look else []
    return spec, found


def _issues_of_trial(document: Document, text: str, folder: Path) -> list[Issue]:
    """What is wrong with the job that a trial is: the document without its sweep, with an override;
    "" for none.
    """
    values = {key: value for key, value in document.values.items() if key != "sweep"}
    trial = override(Document(values=values), [text] if text else [])
    return [*trial.mistakes, *_read(trial.values, folder, look=False)[1]]


@contextmanager
def _without_plugins() -> Iterator[None]:
    """The models are built at the first reading, for which pydantic would look through all that is
    installed here.
    """
    name = "PYDANTIC_DISABLE_PLUGINS"
    if name in os.environ:
        yield
        return
    os.environ[name] = "__all__"
    try:
        yield
    finally:
        os.environ.pop(name, None)  # it is for us alone, not for what we start


def name_from_folder(folder: Path) -> str:
    """A job name out of a folder's name: `My data (2)` -> `My-data-2`; `job` when nothing is left."""
    name = "-".join(re.findall(r"[a-zA-Z0-9]+", folder.resolve().name))[:50].strip("-")
    return name if NAME.fullmatch(name) else "job"


def _copy(value: Any) -> Any:
    """Fresh containers; numbers stay the objects that remember their text."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _by_place(issue: Issue) -> tuple[str, list[int], str]:
    name, *numbers = re.split(r":(?=\d+)", issue.origin)
    return name, [int(number) for number in numbers if number.isdecimal()], issue.field


def _on_disk(values: Mapping[str, Any], folder: Path) -> list[Issue]:
    """Problems with the spec's files: source and entrypoint must exist, the one inside the other."""
    source_name = values.get("source", ".")
    entrypoint = values.get("entrypoint")
    if not isinstance(source_name, str) or not source_name:
        return []
    at = "source"
    try:
        source = (folder / source_name).resolve()
        if not source.is_dir():
            word = "is a file, not a folder" if source.exists() else "no such folder"
            return [
                Issue(
                    (at,), f"{word}: {source_name}", "the folder whose content is sent with the job"
                )
            ]
        if missing := _dependencies_problem(values.get("dependencies"), source):
            return [missing]
        at = "entrypoint"
        problem = (
            entrypoint_problem(entrypoint.strip(), source) if isinstance(entrypoint, str) else None
        )
    except OSError as error:
        problem = (f"cannot be looked up: {error.strerror}", None)
    except ValueError:  # which each version of Python words differently
        problem = ("cannot be looked up: it holds a NUL character", None)
    return [Issue((at,), *problem)] if problem else []


def _missing_inputs(values: Mapping[str, Any], folder: Path) -> list[Issue]:
    """Report local inputs that are not there, beside other mistakes.

    Without other mistakes the provider's checks report them: it knows which inputs it reads.
    """
    issues = []
    for name, value in mapping_of(values, "inputs").items():
        uri = value.get("uri") if isinstance(value, dict) else value
        if not isinstance(uri, str) or not uri.strip() or "://" in uri:
            continue
        with suppress(OSError, ValueError, RuntimeError):  # the reader of the field reports it
            if not os.path.lexists(folder / Path(uri).expanduser()):
                issues.append(Issue(("inputs", name), f"no such file or folder: {uri}"))
    return issues


def _dependencies_problem(value: Any, source: Path) -> Issue | None:
    """A requirements file that is named must be there; which kind it is was read before."""
    at: Keys = ("dependencies", "file") if isinstance(value, dict) else ("dependencies",)
    file = value.get("file") if isinstance(value, dict) else value
    if (
        not isinstance(file, str)
        or file == OFF
        or not file.endswith((".txt", ".in", ".toml", ".lock"))
    ):
        return None
    if (source / file).is_file():
        return None
    names = tuple(
        path.name for pattern in ("*.txt", "*.toml", "uv.lock") for path in source.glob(pattern)
    )
    return Issue(at, f"no such file in the source folder: {file}{did_you_mean(file, names)}")
