"""Bringing a job's log lines from CloudWatch into the run folder: each line once, resumable at any time."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError
from cloudtrain.runs.logs import log_file, split_events, stamp
from cloudtrain.runs.store import RunFolder, storing

if TYPE_CHECKING:
    from cloudtrain.clouds.aws import Aws

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
MOST_PAGES = 50
"""Per stream and look, of up to 1 MB each: a flood of lines is brought in turns."""

Streams = dict[str, dict[str, Any]]
"""Per stream: the token to go on with, the time of the last line (milliseconds), and how many lines had that time."""


def pull(cloud: Aws, run: RunFolder, job: str, nodes: int) -> bool:
    """Bring what is new of all nodes; True when nothing more is there for now.

    The place up to which each stream was read is an event, appended together with the events of those lines; log
    lines beyond it, of a reader that was killed in between, are cut off again. One process reads at a time.
    """
    with _reading(run) as alone:
        if not alone:
            return False
        last = run.last_event("cursor") or {}
        streams: Streams = {name: dict(place) for name, place in last.get("streams", {}).items()}
        sizes: dict[str, int] = dict(last.get("sizes", {}))
        hosts = sorted(f"algo-{number}" for number in range(1, nodes + 1))
        drained = True
        for name in _stream_names(cloud, job):
            host = re.match(r"(algo-\d+)-\d+$", name.rpartition("/")[2])
            if host is None or host[1] not in hosts:
                continue
            drained &= _pull_stream(cloud, run, name, hosts.index(host[1]), streams, sizes)
        return drained


def _pull_stream(cloud: Aws, run: RunFolder, name: str, node: int, streams: Streams, sizes: dict[str, int]) -> bool:
    place = streams.setdefault(name, {"token": None, "time": 0, "count": 0})
    for _ in range(MOST_PAGES):
        answer = _page(cloud, name, place)
        lines = _unseen(answer["events"], place)
        token = answer.get("nextForwardToken")
        at_end = token == place["token"]  # an empty page alone is no end
        place["token"] = token
        if lines:
            events = _keep(run, node, lines, sizes)
            run.append(*events, {"type": "cursor", "time": time.time(), "streams": streams, "sizes": sizes})
        if at_end:
            return True
    return False


def _page(cloud: Aws, name: str, place: dict[str, Any]) -> dict[str, Any]:
    question = {"logGroupName": LOG_GROUP, "logStreamName": name, "startFromHead": True}
    if place["token"]:
        try:
            return cloud.call("logs", "get_log_events", **question, nextToken=place["token"])
        except CloudError as error:
            if error.code != "InvalidParameterException":
                raise
            place["token"] = None  # a token lives 24 hours; the time of the last line lives longer
    if place["time"]:
        question["startTime"] = place["time"]
        place["skip"] = place["count"]
    return cloud.call("logs", "get_log_events", **question)


def _unseen(events: list[Mapping[str, Any]], place: dict[str, Any]) -> list[tuple[float, bytes]]:
    """The lines of a page, less those that were read before a token was lost."""
    skip = place.pop("skip", 0) if events else 0
    lines = []
    for event in events:
        if skip and event["timestamp"] == place["time"]:
            skip -= 1
            continue
        skip = 0
        same = event["timestamp"] == place["time"]
        place["count"] = place["count"] + 1 if same else 1
        place["time"] = event["timestamp"]
        text = event["message"].rstrip("\n").encode("utf-8", "backslashreplace")
        lines += [(event["timestamp"] / 1000, part) for part in text.split(b"\n")]
    return lines


def _keep(run: RunFolder, node: int, lines: list[tuple[float, bytes]], sizes: dict[str, int]) -> list[dict[str, Any]]:
    """Write the text among the lines to the node's log; returns the events among them."""
    events: list[dict[str, Any]] = []
    text = bytearray()
    for when, line in lines:
        told, said = split_events([line], node)
        events += told
        for words in said:
            text += stamp(when).encode() + b" " + words + b"\n"
    path, size = log_file(run.path, node), sizes.get(str(node), 0)
    with storing(path), open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
        file.truncate(size)
        file.seek(size)
        file.write(text)
    sizes[str(node)] = size + len(text)
    return events


def _stream_names(cloud: Aws, job: str) -> list[str]:
    """The streams of all nodes, `<job>/algo-N-<start>`: a restart begins new ones. None before the first line."""
    question = {"logGroupName": LOG_GROUP, "logStreamNamePrefix": f"{job}/"}
    try:
        pages = cloud.pages("logs", "describe_log_streams", **question)
        return sorted((s["logStreamName"] for page in pages for s in page.get("logStreams", [])), key=_age)
    except CloudError as error:
        if error.code == "ResourceNotFoundException":
            return []
        raise


def _age(name: str) -> tuple[int, str]:
    start = name.rpartition("-")[2]
    return (int(start) if start.isdigit() else 0, name)


@contextmanager
def _reading(run: RunFolder) -> Iterator[bool]:
    """Whether nobody else is reading; nobody else begins meanwhile."""
    path = run.path / "logs" / "reading.lock"
    with storing(path):
        path.parent.mkdir(exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield _taken(file)
    finally:
        os.close(file)


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
