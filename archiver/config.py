"""The configuration of `archiver run`: one frozen model, its defaults and its checks in one place."""

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from index_format.keys import check_topic

from .errors import UsageError

_SIZES = {"B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_size(text: Any) -> Any:
    """Bytes from `128MiB`; numbers pass through. Raises ValueError."""
    if not isinstance(text, str):
        return text
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", text.strip())
    if not match or (match[2] or "B") not in _SIZES:
        raise ValueError(f"{text!r} is not a size; write a number with one of {', '.join(_SIZES)}")
    return int(Decimal(match[1]) * _SIZES[match[2] or "B"])


def parse_duration(text: Any) -> Any:
    """Seconds from `5m`; numbers pass through. Raises ValueError."""
    if not isinstance(text, str):
        return text
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]+)", text.strip())
    if not match or match[2] not in _SECONDS:
        raise ValueError(f"{text!r} is not a duration; write a number with one of {', '.join(_SECONDS)}")
    return float(match[1]) * _SECONDS[match[2]]


Size = Annotated[int, BeforeValidator(parse_size)]
Seconds = Annotated[float, BeforeValidator(parse_duration), Field(allow_inf_nan=False)]
KAFKA_RESERVED = {
    "enable.auto.commit": "the marker in the archive is the only committed position",
    "enable.auto.offset.store": "the marker in the archive is the only committed position",
    "auto.offset.reset": "a missing offset is a gap to record, never a place to jump from",
    "isolation.level": "it is part of the archive's promise; use --isolation-level",
    "enable.partition.eof": "--once and idle progress need to see the end of a partition",
    "group.id": "use --group-id",
    "bootstrap.servers": "use -b",
    "metadata.broker.list": "use -b",
    "auto.commit.enable": "the marker in the archive is the only committed position",
}
"""librdkafka settings that nobody may override, each with the reason."""


class RunConfig(BaseModel):
    """Everything that `archiver run` needs to know. Sizes in bytes, times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    archive: str
    bootstrap_servers: str = Field(min_length=1)
    topics: Annotated[tuple[str, ...], Field(min_length=1)]
    once: bool = False
    group_id: str = Field("blockgz-archiver", min_length=1)
    kafka: dict[str, str] = Field(default_factory=dict)
    endpoint_url: str | None = None
    region: str | None = None
    layout: Literal["topic", "seed"] = "topic"
    record_format: Literal["json", "text"] = "json"
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    block_bytes: Size = Field(1024 * 1024, ge=1, le=128 * 1024**2)
    chunk_bytes: Size = Field(128 * 1024**2, ge=1)
    chunk_records: int | None = Field(None, ge=1)
    chunk_interval: Seconds = Field(300, gt=0)
    gzip_library: Literal["isal", "zlib"] = "isal"
    gzip_level: int | None = Field(None, ge=0, le=9)
    memory: Size = Field(256 * 1024**2, ge=32 * 1024**2)
    buffer_dir: Path | None = None
    buffer_bytes: Size = Field(10 * 1024**3, ge=1024**2)
    grace: Seconds = Field(25, gt=0)
    on_gap: Literal["record", "stop"] = "record"
    on_bad_record: Literal["stop", "skip"] = "stop"
    single_writer: bool = False
    takeover: bool = False

    @model_validator(mode="after")
    def _check(self) -> "RunConfig":
        for topic in self.topics:
            check_topic(topic)
        for name, reason in KAFKA_RESERVED.items():
            if name in self.kafka:
                raise ValueError(f"-X {name} may not be set: {reason}")
        if self.layout == "seed" and self.record_format != "text":
            raise ValueError("layout seed holds record format text only: its readers know no other")
        if self.gzip_library == "isal" and self.compression_level > 3:
            raise ValueError("ISA-L has the gzip levels 0 to 3; for more use --gzip-library zlib")
        return self

    @property
    def compression_level(self) -> int:
        """The level in force: the library's best trade where none is given."""
        if self.gzip_level is not None:
            return self.gzip_level
        return 1 if self.gzip_library == "isal" else 6


def run_config(**values: Any) -> RunConfig:
    """The model from option values, None meaning the default; raises UsageError that names field, value and reason."""
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return RunConfig(**given)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]).replace("_", "-")
        reason = str(first.get("ctx", {}).get("error", "") or first["msg"])
        raise UsageError(
            f"--{field} cannot be {first['input']!r}" if field else "these options cannot be used",
            why=reason,
            remedy="see archiver run --help",
        ) from error
