"""Members that a spec sets in the platform's own requests, such as `aws.request`. Pure.

They reach what the fields of job.yaml do not model. What cloudtrain relies on stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import Issue, Keys

if TYPE_CHECKING:  # watching a run does not need pydantic
    from cloudtrain.spec.model import JobSpec

Names = tuple[str, ...]
"""Names of a member and of those around it. An item of a keyed list has the name in its key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestForm:
    """What merging must know of a platform's request."""

    section: str
    """Section of job.yaml with the field."""
    list_keys: Mapping[str, str]
    """Path of a list -> member that identifies its items. Other lists are replaced whole."""
    reserved: Mapping[str, str]
    """Path that a spec cannot set here, `*` for any name -> what to use instead."""
    removable: frozenset[str] = frozenset()
    """Paths around reserved ones that null may remove as a whole."""
    unsupported: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Path of a member that no job can have here -> why, and what to do instead."""
    field: str = "request"
    """Field of job.yaml with the members: `sweep_request` for a native sweep's job."""


def merge_request(
    document: Mapping[str, Any], overrides: Mapping[str, Any], form: RequestForm
) -> dict[str, Any]:
    """Return the request with the members of the spec: mappings are merged, null removes."""
    return _merge(document, overrides, form, ())


def without_removed(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that a spec sets, without the removed ones."""
    kept: dict[str, Any] = {}
    for name, value in overrides.items():
        if isinstance(value, Mapping):
            kept[name] = without_removed(value)
        elif value is not None:
            kept[name] = value

    return kept


def _merge(
    document: Mapping[str, Any], overrides: Mapping[str, Any], form: RequestForm, at: Names
) -> dict[str, Any]:
    merged = dict(document)
    for name, value in overrides.items():
        path = (*at, name)
        earlier = merged.get(name)
        key = form.list_keys.get(".".join(path))

        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            base = earlier if isinstance(earlier, Mapping) else {}
            merged[name] = _merge(base, value, form, path)
        elif key and _is_keyed(value, key):
            merged[name] = _merge_items(earlier or [], value, key, form, path)
        else:
            merged[name] = value

    return merged


def _merge_items(
    items: Sequence[Any], overrides: Sequence[Any], key: str, form: RequestForm, at: Names
) -> list[Any]:
    """Merge items with the same key, and append the others."""
    merged = {item[key]: item for item in items}
    for item in overrides:
        name = item[key]
        merged[name] = _merge(merged.get(name, {}), item, form, (*at, name))

    return list(merged.values())


def _is_keyed(value: Any, key: str) -> bool:
    """Return whether a value is a list of mappings that have this key."""
    if not isinstance(value, (list, tuple)):
        return False

    return all(isinstance(item, Mapping) and isinstance(item.get(key), str) for item in value)


@dataclass(frozen=True, slots=True)
class Override:
    """A value that a spec sets in the request."""

    names: Names
    keys: Keys
    """Its path in job.yaml, with positions in lists."""
    value: Any


def spec_overrides(spec: JobSpec, provider: str) -> list[Override]:
    """Return everything that a spec sets in the provider's requests, items of lists by position."""
    overrides: list[Override] = []
    for name in ("request", "sweep_request"):
        form = RequestForm(section=provider, field=name, list_keys={}, reserved={})
        overrides += overrides_of(getattr(getattr(spec, provider, None), name, {}), form)

    return overrides


def overrides_of(values: Mapping[str, Any], form: RequestForm) -> Iterator[Override]:
    """Yield each value that is set; a mapping or a keyed list yields its members."""
    yield from _leaves(values, form, (), (form.section, form.field))


def _leaves(value: Any, form: RequestForm, names: Names, keys: Keys) -> Iterator[Override]:
    key = form.list_keys.get(".".join(names))
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, form, (*names, name), (*keys, name))
    elif key and _is_keyed(value, key):
        for index, item in enumerate(value):
            members = {name: member for name, member in item.items() if name != key}
            yield from _leaves(members, form, (*names, item[key]), (*keys, index))
    else:
        yield Override(names, keys, value)


def reserved_issues(values: Mapping[str, Any], form: RequestForm) -> Iterator[Issue]:
    """Yield an error for each value that replaces or removes what cloudtrain relies on."""
    for override in overrides_of(values, form):
        if override.value is None and ".".join(override.names) in form.removable:
            continue
        for path, (reason, instead) in form.unsupported.items():
            if _overlaps(override.names, tuple(path.split("."))):
                yield Issue(override.keys, f"is not supported: {reason}", instead)
                break

        for path, instead in form.reserved.items():
            if _overlaps(override.names, tuple(path.split("."))):
                message = f"cloudtrain sets {path} itself"
                yield Issue(override.keys, message, instead)
                break


def _overlaps(names: Names, pattern: Names) -> bool:
    """Return True if one of the paths leads into the other."""
    return all(fnmatchcase(name, part) for name, part in zip(names, pattern, strict=False))


def override_path(
    values: Mapping[str, Any], document: Mapping[str, Any], path: Keys, form: RequestForm
) -> Keys | None:
    """Return the field of job.yaml that set a member of the merged request, or None.

    `path`: of the member in `document`, or of one that is missing there.
    """
    here: Any = values
    there: Any = document
    names: Names = ()
    keys: Keys = (form.section, form.field)

    for part in path:
        key = form.list_keys.get(".".join(names))
        if isinstance(there, list) and isinstance(part, int):
            there = there[part] if part < len(there) else None
            index = _position(here, there, part, key)
            if index is None:
                return None

            here = here[index]
            if key and isinstance(there, Mapping):
                names = (*names, str(there.get(key)))

            keys = (*keys, index)
        elif isinstance(here, Mapping) and part in here:
            here = here[part]
            there = there.get(part) if isinstance(there, Mapping) else None
            names = (*names, str(part))
            keys = (*keys, part)
        elif isinstance(there, Mapping) and part not in there and names:
            return keys  # a member is missing beside what the spec sets
        else:
            return None

    return keys


def _position(overrides: Any, item: Any, index: int, key: str | None) -> int | None:
    """Return the position of a request's item among the spec's own, or None."""
    if not isinstance(overrides, (list, tuple)):
        return None
    if key is None or not _is_keyed(overrides, key) or not isinstance(item, Mapping):
        return index if index < len(overrides) else None

    same = (number for number, own in enumerate(overrides) if own[key] == item.get(key))
    return next(same, None)
