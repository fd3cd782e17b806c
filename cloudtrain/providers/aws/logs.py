"""A job's log lines in CloudWatch: new lines of each stream, continued at any time."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError
from cloudtrain.runs.logs import EVENT_MARK
from cloudtrain.runs.observation import LogPart, Positions

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
_CONTROL = re.compile(r"#(011|015|033(?=\[))")
"""SageMaker's spelling of control characters in CloudWatch (lines observed 2019 to 2025)."""
MAX_PAGES = 50
"""Maximum pages per stream and call, of up to 1 MB each; the rest follows at the next call."""


def new_lines(
    cloud: AwsClient, job: str, nodes: int, positions: Positions
) -> Generator[LogPart, None, bool]:
    """Yield new lines of all nodes; return True if all of them were read."""
    hosts = sorted(f"algo-{number}" for number in range(1, nodes + 1))
    complete = True
    for name in _stream_names(cloud, job):
        host = re.match(r"(algo-\d+)-\d+$", name.rpartition("/")[2])
        if host is not None and host[1] in hosts:
            complete &= yield from _of_stream(
                cloud, name, hosts.index(host[1]), positions.get(name, {})
            )
    return complete


def _of_stream(
    cloud: AwsClient, name: str, node: int, position: Mapping[str, Any]
) -> Generator[LogPart, None, bool]:
    # The token to continue with, the time of the last line (milliseconds), and the number of lines
    # at that time.
    place = {"token": None, "time": 0, "count": 0, **position}
    for _ in range(MAX_PAGES):
        answer = _page(cloud, name, place)
        lines = _unseen(answer["events"], place)
        token = answer.get("nextForwardToken")
        at_end = token == place["token"]  # an empty page alone does not end the stream
        place["token"] = token
        if lines:
            yield LogPart(node=node, lines=lines, stream=name, position=dict(place))
        if at_end:
            return True
    return False


def _page(cloud: AwsClient, name: str, place: dict[str, Any]) -> dict[str, Any]:
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
    """Return the lines of a page, without those read before a token was lost."""
    skip = place.pop("skip", 0) if events else 0
    lines = []
    for event in events:
        if skip and event["timestamp"] == place["time"]:
            skip -= 1
            continue
        skip = 0
        is_same_time = event["timestamp"] == place["time"]
        place["count"] = place["count"] + 1 if is_same_time else 1
        place["time"] = event["timestamp"]
        message = with_control_characters(event["message"].rstrip("\n"))
        text = message.encode("utf-8", "backslashreplace")
        lines += [(event["timestamp"] / 1000, part) for part in text.split(b"\n")]
    return lines


def with_control_characters(line: str) -> str:
    """Return a line with its tabs, carriage returns and escapes, which arrive as text.

    Events stay as they are: their JSON has none, and a value may contain such a text.
    """
    if EVENT_MARK.decode() in line:
        return line
    return _CONTROL.sub(lambda match: chr(int(match[1], 8)), line)


def _stream_names(cloud: AwsClient, job: str) -> list[str]:
    """Return the streams of all nodes, `<job>/algo-N-<start>`; empty before the first line.

    A restart begins new streams.
    """
    question = {"logGroupName": LOG_GROUP, "logStreamNamePrefix": f"{job}/"}
    try:
        pages = cloud.pages("logs", "describe_log_streams", **question)
        return sorted(
            (s["logStreamName"] for page in pages for s in page.get("logStreams", [])), key=_age
        )
    except CloudError as error:
        if error.code == "ResourceNotFoundException":
            return []
        raise


def _age(name: str) -> tuple[int, str]:
    start = name.rpartition("-")[2]
    return (int(start) if start.isdigit() else 0, name)
