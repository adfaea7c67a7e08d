"""Where the value of a setting came from."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

KAFKA_PREFIX = "kafka."
"""Settings are keyed by field, and librdkafka's by this prefix and their own name."""


class OriginKind(Enum):
    """In rising order of precedence."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "env"
    FLAG = "flag"
    OPTION = "option"
    """Of a Spark format, where there are no others."""


@dataclass(frozen=True)
class Origin:
    """`place`: a flag, an environment variable or `file:line`; `alias`: the name there, where it is not the field's."""

    kind: OriginKind
    place: str = ""
    alias: str | None = None

    def __str__(self) -> str:
        alias = f" ({self.alias})" if self.alias else ""
        return f"{self.kind.value} {self.place}{alias}".rstrip()


DEFAULT = Origin(OriginKind.DEFAULT)


@dataclass(frozen=True)
class Setting:
    """A value as it was written, and where."""

    value: Any
    origin: Origin


Settings = dict[str, Setting]
"""By field name or `kafka.` and a name of librdkafka's."""
