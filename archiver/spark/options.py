"""Options of the format `blockgz-archive`: settings of `archiver run` in camel case, and what only the user knows."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from blockgz.config.connect_names import SPARK_DEFAULTS, SPARK_NAMES
from blockgz.config.model import RunConfig
from blockgz.config.origins import DEFAULT, Origin, OriginKind, Setting
from blockgz.config.resolution import resolve
from blockgz.errors import UsageError
from blockgz.spark.options import FormatOptions, bad_value, json_object
from index_format.chunk_index import UNVERIFIED

FORMAT = "blockgz-archive"

IDENTITY_OPTIONS = ("clusterId", "topicIds")

MISSING_OPTION = "missingOffsets"

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
    """What a write was asked for."""

    config: RunConfig
    cluster_id: str | None
    topic_ids: Mapping[str, str]
    missing_are_unverified: bool = False
    """Whether offsets that a batch lacks between its records are recorded as gaps, for it may have left records out."""
    readings: str | None = None
    """See `read_ranges.ask_ranges`."""


def parse_options(given: Mapping[str, str]) -> SinkOptions:
    """The options by their names in any case; raises UsageError that names the option and the remedy."""
    known = (*SPARK_NAMES, *IDENTITY_OPTIONS, MISSING_OPTION, *SPARK_OPTIONS)
    source = "give it to the source, format kafka"
    options = FormatOptions(FORMAT, given, known, hidden=(JOB_OPTION,), dotted=source)
    options.given["path"] = options.path(".save(path)")
    config = resolve(
        {field: Setting(value, DEFAULT) for field, value in (SPARK_DEFAULTS | STAND_INS).items()},
        {field: _setting(name, options.given[name]) for name, field in SPARK_NAMES.items() if name in options.given},
        environ=os.environ,
    ).config
    if config.memory > MOST_MEMORY:
        raise UsageError(
            f"memory {options.given['memory']} is too much for a task",
            why="Arrow cannot hold more",
            remedy="write 1GiB",
        )
    text, example = options.given.get("topicIds", "{}"), '{"orders":"AAAAAAAAQyq4sA6hRyR_Zw"}'
    ids = json_object("topicIds", text, example)
    if not all(isinstance(value, str) and value for value in ids.values()):
        raise bad_value("topicIds", text, example)
    topic_ids = {topic: topic_id.translate(_AS_LIBRDKAFKA) for topic, topic_id in ids.items()}
    missing = options.word(MISSING_OPTION, ("hole", UNVERIFIED), "hole")
    cluster_id, readings = options.text("clusterId"), options.given.get(JOB_OPTION)
    return SinkOptions(config, cluster_id, topic_ids, missing == UNVERIFIED, readings)


def _setting(name: str, value: str) -> Setting:
    return Setting(value, Origin(OriginKind.OPTION, f"format {FORMAT}", name))
