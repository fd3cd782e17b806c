"""Loader of job.yaml: strict, with every mistake at its line.

It combines three checks of the same values: the models (types, unknown keys), contradictions
between fields, and files on disk (entrypoint, source, local inputs).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from cloudtrain.declaration import is_provider
from cloudtrain.errors import Issue, Keys, SpecError, did_you_mean, dotted
from cloudtrain.spec.contradictions import contradictions
from cloudtrain.spec.entrypoint import program_problem
from cloudtrain.spec.fields import EMPTY_HINT, NAME, FieldErrors
from cloudtrain.spec.inputs import CONDA_WAY, OFF
from cloudtrain.spec.model import JobSpec, section_model, section_models, spec_model
from cloudtrain.spec.section import NAMES_OF_CLOUDS
from cloudtrain.spec.sources import (
    FlagText,
    job_folder,
    read_source,
    with_arguments,
    with_defaults,
)
from cloudtrain.spec.yaml_document import Document, kind_of, mapping_of, parse_scalar
from cloudtrain_wire.secret_values import masker, secrets_in

WholeSpec = Callable[[], type[BaseModel]]
"""Maker of the model with all provider sections. Called only to list keys."""

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def load_spec(
    path: Path, overrides: Sequence[str] = (), arguments: Sequence[str] = ()
) -> tuple[JobSpec, Document]:
    """Read job.yaml, a folder or a script, with overrides such as `resources.nodes=4`.

    Return the spec and the document with every value's origin. `arguments`: more arguments for the
    program. Raise SpecError with all mistakes, UsageError if the file cannot be read.
    """
    document = read_source(path)
    document = _laid_over(document, with_arguments(document, arguments) + list(overrides))
    return spec_from_document(document, job_folder(path))


def spec_from_values(
    values: Mapping[str, Any],
    folder: Path,
    overrides: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> tuple[JobSpec, Document]:
    """Read a spec written in Python as plain dicts. `folder`: base of relative paths."""
    try:
        text = json.dumps(dict(values), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(
            [Issue((), f"contains a value that job.yaml cannot express: {error}", origin="spec")]
        ) from None

    document = Document(values=json.loads(text), name="spec", text=text)
    document = with_defaults(document, folder)
    document = _laid_over(document, with_arguments(document, arguments) + list(overrides))
    return spec_from_document(document, folder.resolve())


def _laid_over(document: Document, overrides: Sequence[str]) -> Document:
    """Apply overrides to a document. A setting with a fixed value leaves the search space."""
    result = override(document, overrides)
    sweep = mapping_of(result.values, "sweep")
    space = mapping_of(sweep, "space")
    if not space:
        return result

    fixed = {
        tuple(part.strip() for part in text.partition("=")[0].split(".")) for text in overrides
    }
    varied = _without(space, fixed)
    if len(varied) == len(space):
        return result

    if varied:
        sweep = {**sweep, "space": varied}
        if isinstance(points := sweep.get("try_first"), list):
            sweep["try_first"] = [
                _without(point, fixed) if isinstance(point, dict) else point for point in points
            ]

        return replace(result, values={**result.values, "sweep": sweep})

    values = {key: value for key, value in result.values.items() if key != "sweep"}
    return replace(result, values=values)


def _without(settings: Mapping[str, Any], fixed: Collection[Keys]) -> dict[str, Any]:
    """Return the settings that have no fixed value."""
    from cloudtrain.spec.varied_settings import path_of

    return {key: value for key, value in settings.items() if path_of(str(key)) not in fixed}


def override(document: Document, overrides: Sequence[str]) -> Document:
    """Apply `key.path=value` texts to a document. Their origin is the flag.

    Invalid texts become `mistakes` of the result.
    """
    values = _copy(document.values)
    origins = dict(document.origins)
    issues = []
    for text in overrides:
        path, equals, value = text.partition("=")
        flag = text.flag if isinstance(text, FlagText) else f"--set {text}"
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
                message = "is a list, which cannot be changed by key"
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
    """Return the spec of a document. `folder`: base of relative paths.

    `look`: check the files on disk. A rerun brings its own source instead.
    """
    masker.add(secrets_in(document.values))
    spec, mistakes = _read(document.values, folder, look=look)
    # The spec of a rerun or a trial is already checked.
    if look and mapping_of(document.values, "sweep"):
        from cloudtrain.spec.varied_settings import trial_issues

        issues_of_trial = partial(_issues_of_trial, document, folder=folder)
        mistakes += trial_issues(document.values, issues_of_trial)

    if spec is None or mistakes or document.mistakes:
        if look:
            wrong = {issue.path[:2] for issue in mistakes}
            missing = _missing_inputs(document.values, folder)
            mistakes += [issue for issue in missing if issue.path not in wrong]

        issues = [issue.at(document.origin(issue.path)) for issue in dict.fromkeys(mistakes)]
        issues += document.mistakes
        raise SpecError(sorted(issues, key=_by_place))

    return spec, document


def _read(
    values: Mapping[str, Any], folder: Path, *, look: bool
) -> tuple[JobSpec | None, list[Issue]]:
    """Return the spec (None if invalid) and its mistakes."""
    issues: list[Issue] = []
    if "name" not in values:
        values = {"name": name_from_folder(folder), **values}

    spec = None
    sections = {key: model for key in values if (model := section_model(key))}
    try:
        with _without_plugins():
            spec = spec_model(sections).model_validate(values)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            issues += issues_of(item, lambda: spec_model(section_models()))

    issues += contradictions(values)
    for key, section in sections.items():
        if isinstance(values[key], dict):
            issues += section.contradictions(values[key], values)

    issues += _on_disk(values, folder) if look else []
    return spec, issues


def _issues_of_trial(document: Document, text: str, *, folder: Path) -> list[Issue]:
    """Return the mistakes in the job of a trial. `text`: an override, or "" for none."""
    values = {key: value for key, value in document.values.items() if key != "sweep"}
    trial = override(Document(values=values), [text] if text else [])
    return [*trial.mistakes, *_read(trial.values, folder, look=False)[1]]


@contextmanager
def _without_plugins() -> Iterator[None]:
    """Turn off plugins of pydantic, which would scan all installed packages."""
    name = "PYDANTIC_DISABLE_PLUGINS"
    if name in os.environ:
        yield
        return

    os.environ[name] = "__all__"
    try:
        yield
    finally:
        os.environ.pop(name, None)  # not for child processes


def name_from_folder(folder: Path) -> str:
    """Return a job name from a folder's name: `My data (2)` -> `My-data-2`, or `job`."""
    name = "-".join(re.findall(r"[a-zA-Z0-9]+", folder.resolve().name))[:50].strip("-")
    return name if re.fullmatch(NAME, name) else "job"


def _copy(value: Any) -> Any:
    """Copy containers. Numbers keep their original text."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value

    return [_copy(item) for item in value]


def _by_place(issue: Issue) -> tuple[str, list[int], str]:
    name, *numbers = re.split(r":(?=\d+)", issue.origin)
    return name, [int(number) for number in numbers if number.isdecimal()], issue.field


def _on_disk(values: Mapping[str, Any], folder: Path) -> list[Issue]:
    """Return problems with files of the spec: source, requirements and entrypoint."""
    source_name = values.get("source", ".")

    if not isinstance(source_name, str) or not source_name:
        return []
    at = "source"
    try:
        source = Path(os.path.realpath(folder / source_name))
        if not source.is_dir():
            problem_word = "is a file, not a folder" if source.exists() else "no such folder"
            hint = "source is the folder that is sent with the job; clone a repository first"
            return [Issue((at,), f"{problem_word}: {source_name}", hint)]

        if missing := _dependencies_problem(values.get("dependencies"), source):
            return [missing]
        at = "entrypoint"
        problem = program_problem(values, source)
    except OSError as error:
        problem = (f"cannot be read: {error.strerror}", None)
    except ValueError:  # the text depends on the Python version
        problem = ("contains a NUL character", None)

    if not problem:
        return []

    return [Issue((at,), *problem)]


def _missing_inputs(values: Mapping[str, Any], folder: Path) -> list[Issue]:
    """Return local inputs that do not exist, to report them with other mistakes.

    Without other mistakes the provider reports them: it knows which inputs it reads.
    """
    issues = []
    for name, value in mapping_of(values, "inputs").items():
        if isinstance(value, dict):
            uri = value.get("uri")
        else:
            uri = value

        if not isinstance(uri, str) or not uri.strip() or "://" in uri:
            continue
        with suppress(OSError, ValueError, RuntimeError):  # the reader of the field reports it
            if not os.path.lexists(folder / Path(uri).expanduser()):
                issues.append(Issue(("inputs", name), f"no such file or folder: {uri}"))

    return issues


def _dependencies_problem(value: Any, source: Path) -> Issue | None:
    """Return an issue if the requirements file does not exist."""
    at: Keys = ("dependencies", "file") if isinstance(value, dict) else ("dependencies",)
    if isinstance(value, dict):
        file = value.get("file")
    else:
        file = value

    if not isinstance(file, str) or file == OFF:
        return None
    if not file.endswith((".txt", ".in", ".toml")) or (source / file).is_file():
        return None

    names = []
    for pattern in ("*.txt", "*.toml"):
        names += [path.name for path in source.glob(pattern)]

    return Issue(at, f"no such file in the source folder: {file}{did_you_mean(file, names)}")


def issues_of(item: Any, spec: WholeSpec) -> list[Issue]:
    """Return the issues for one of the `errors()` of a ValidationError."""
    keys = tuple(item["loc"])
    kind = item["type"]
    value = item["input"]
    context = item.get("ctx", {})

    if kind == "extra_forbidden":
        message = f"unknown key{did_you_mean(str(keys[-1]), _known_keys(spec, keys[:-1]))}"
        is_conda = "conda" in str(keys[-1]) or _has_conda(value)
        return [Issue(keys, message, CONDA_WAY if is_conda else _other_section(spec, keys))]

    if kind == "value_error" and isinstance(context["error"], FieldErrors):
        return [replace(issue, path=(*keys, *issue.path)) for issue in context["error"].issues]
    if kind in _EXPECTED:
        hint = EMPTY_HINT if value is None else None
        return [Issue(keys, f"expected {_EXPECTED[kind]}, got {kind_of(value)}", hint)]

    if kind == "missing":
        return [Issue(keys, "is missing", _meaning(spec, keys))]
    if kind == "literal_error":
        return [Issue(keys, _not_one_of(re.findall(r"'([^']+)'", context["expected"]), value))]
    if kind == "greater_than_equal":
        return [Issue(keys, f"must be at least {context['ge']}, got {kind_of(value)}")]
    if kind == "less_than_equal":
        return [Issue(keys, f"must be at most {context['le']}, got {kind_of(value)}")]
    return [Issue(keys, f"{item['msg'][:1].lower()}{item['msg'][1:]}, got {kind_of(value)}")]


def _other_section(spec: WholeSpec, keys: Keys) -> str | None:
    """Return a hint if another section has this field: `azure.workspace` for `aws.workspace`."""
    key = str(keys[-1])
    if key in NAMES_OF_CLOUDS:
        return f"in job.yaml this is {NAMES_OF_CLOUDS[key]}"
    if len(keys) > 2:
        return None
    sections = (name for name in spec().model_fields if name != keys[0])
    owners = [name for name in sections if key in _known_keys(spec, (name,))]
    if not owners:
        is_alone = len(keys) == 1 and key.replace("-", "_").isidentifier()
        if is_alone and not is_provider(key) and not did_you_mean(key, tuple(spec().model_fields)):
            return f"if it is for the program: args.{key}"
        return None

    return f"this is a field of {' and '.join(owners)}: {owners[0]}.{key}"


def _has_conda(value: Any) -> bool:
    """Return whether a value is a conda environment, as in Azure ML's documentation."""
    return isinstance(value, dict) and any("conda" in str(key) for key in value)


def _not_one_of(options: Sequence[str], value: Any) -> str:
    """Return `expected minimize or maximize, got 'max' (did you mean 'maximize'?)`."""
    suggestion = did_you_mean(str(value), options)
    for option in options:
        if isinstance(value, str) and value and option.startswith(value.lower()):
            suggestion = f" (did you mean {option!r}?)"
            break

    return f"expected {', '.join(options[:-1])} or {options[-1]}, got {kind_of(value)}{suggestion}"


def _known_keys(spec: WholeSpec, keys: Keys) -> tuple[str, ...]:
    model = _model_at(spec, keys)
    if not model:
        return ()

    return tuple(model.model_fields)


def _meaning(spec: WholeSpec, keys: Keys) -> str | None:
    """Return the description of a field."""
    model = _model_at(spec, keys[:-1])
    if model is None:
        return None

    field = model.model_fields.get(str(keys[-1]))
    return field.description if field else None


def _model_at(spec: WholeSpec, keys: Keys) -> type[BaseModel] | None:
    """Return the model of a section, or None."""
    model: Any = spec()
    for key in keys:
        field = model.model_fields.get(str(key))
        if field is None:
            return None

        # `Sweep | None` has one part that is a model.
        parts = (field.annotation, *get_args(field.annotation))
        models = [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]
        if not models:
            return None

        model = models[0]

    section: type[BaseModel] = model
    return section
