"""Options of the format `blockgz-archive`: settings of `archiver run` in camel case, and what only the user knows."""

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from archiver.config.connect_names import SPARK_DEFAULTS, SPARK_NAMES
from archiver.config.model import RunConfig
from archiver.config.origins import DEFAULT, Origin, OriginKind, Setting
from archiver.config.resolution import resolve
from blockgz_runtime.errors import UsageError

FORMAT = "blockgz-archive"

IDENTITY_OPTIONS = ("clusterId", "topicIds")

JOB_OPTION = "readings"
"""What `archiver spark` alone can say, as query and source are its own: where to ask what a batch read."""

SPARK_OPTIONS = ("checkpointLocation", "queryName")
"""Spark passes its own options of a stream along."""

STAND_INS = {"bootstrap_servers": "none", "topics": "*"}
"""A sink reads no topic: these fields of the model have no part in it."""

_AS_LIBRDKAFKA = str.maketrans("-_", "+/")
"""Java, and so Kafka's own tools, spell the base64 of an id for URLs; archives have librdkafka's spelling."""

MOST_MEMORY = 1024**3
"""Arrow addresses 2 GiB of keys or values at once."""


@dataclass(frozen=True)
class SinkOptions:
    """Everything that a write is told."""

    config: RunConfig
    cluster_id: str | None
    topic_ids: Mapping[str, str]
    readings: str | None = None
    """See `readings.asked`."""


def parse_options(given: Mapping[str, str]) -> SinkOptions:
    """The options by their names in any case; raises UsageError that names the option and the remedy."""
    known = (*SPARK_NAMES, *IDENTITY_OPTIONS, *SPARK_OPTIONS)
    names = {name.lower(): name for name in (*known, JOB_OPTION)}
    for name in given:
        if name.lower() not in names:
            raise _unknown(name, sorted(known))
    options = {names[name.lower()]: value for name, value in given.items()}
    if not options.get("path"):
        raise UsageError(
            f"format {FORMAT} needs a path", remedy='add .option("path", "s3://bucket/prefix") or .save(path)'
        )
    config = resolve(
        {field: Setting(value, DEFAULT) for field, value in (SPARK_DEFAULTS | STAND_INS).items()},
        {field: _setting(name, options[name]) for name, field in SPARK_NAMES.items() if name in options},
        environ=os.environ,
    ).config
    if config.memory > MOST_MEMORY:
        raise UsageError(
            f"memory {options['memory']} is too much for a task", why="Arrow cannot hold more", remedy="write 1GiB"
        )
    topic_ids = _topic_ids(options.get("topicIds"))
    return SinkOptions(config, options.get("clusterId") or None, topic_ids, options.get(JOB_OPTION))


def _setting(name: str, value: str) -> Setting:
    if name == "path" and "://" not in value:
        # Absolute, for executors work in folders of their own; a bare name is a folder, as everywhere in Spark.
        value = str(Path(value).expanduser().absolute())
    return Setting(value, Origin(OriginKind.OPTION, f"format {FORMAT}", name))


def _topic_ids(text: str | None) -> Mapping[str, str]:
    if text is None:
        return {}
    try:
        ids = json.loads(text)
    except ValueError:
        ids = None
    if not isinstance(ids, dict) or not all(isinstance(value, str) and value for value in ids.values()):
        raise UsageError(f"topicIds is {text[:80]!r}", remedy='write it like {"orders":"AAAAAAAAQyq4sA6hRyR_Zw"}')
    return {topic: topic_id.translate(_AS_LIBRDKAFKA) for topic, topic_id in ids.items()}


def _unknown(name: str, known: list[str]) -> UsageError:
    if name.lower().startswith("kafka."):
        return UsageError(
            f"format {FORMAT} has no option {name!r}",
            why="it speaks to no broker",
            remedy="give it to the source, format kafka",
        )
    lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), lower, 1)
    return UsageError(
        f"format {FORMAT} has no option {name!r}",
        why=f"there are {', '.join(known)}",
        remedy=f"did you mean {lower[near[0]]}?" if near else "leave it out",
    )
