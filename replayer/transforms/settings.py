"""The settings of one transform or predicate, read as Connect's ConfigDef reads them; unknown names are errors."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from blockgz.documents import parse_document
from blockgz.errors import UsageError

T = TypeVar("T")
# Names that Connect has given up, and what took their place.
_RENAMED = {"blacklist": "exclude", "whitelist": "include"}


class Settings:
    """The settings below a prefix such as `transforms.mask.`; ask for each, then call `finish`."""

    def __init__(self, prefix: str, properties: Mapping[str, str]) -> None:
        self._prefix = prefix
        self._values = {
            name.removeprefix(prefix): value for name, value in properties.items() if name.startswith(prefix)
        }
        self._asked: set[str] = set()

    def optional(self, name: str) -> str | None:
        """Return the text of a setting, None if it is not set."""
        self._asked.add(name)
        return self._values.get(name)

    def text(self, name: str, default: str | None = None) -> str:
        """The text of a setting; raises UsageError if there is none and no default."""
        value = self.optional(name)
        if value is None:
            value = default
        if value is None:
            raise UsageError(
                f"{self._prefix}{name} is missing", why="the transform needs it", remedy=f"add {self._prefix}{name}=…"
            )
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """Return a list with at least one item."""
        items = self.items(name)
        if not items:
            self.text(name)
            raise self.wrong(name, "it is an empty list")
        return items

    def items(self, name: str) -> tuple[str, ...]:
        """A list, empty if it is not set: items between commas, white space around them cut."""
        text = self.optional(name)
        return tuple(re.split(r"\s*,\s*", text.strip())) if text and text.strip() else ()

    def choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        value = self.text(name, default)
        if value not in choices:
            raise self.wrong(name, f"it must be one of {', '.join(choices)}")
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean, false if it is not set."""
        value = (self.optional(name) or "false").strip().lower()
        if value not in ("true", "false"):
            raise self.wrong(name, "it must be true or false")
        return value == "true"

    def made(self, name: str, make: Callable[[str], T], default: str | None = None) -> T:
        """Return what `make` returns for a required text; its ValueError or re.error becomes a UsageError."""
        text = self.text(name, default)
        try:
            return make(text)
        except (ValueError, re.error) as error:
            raise self.wrong(name, str(error)) from error

    def wrong(self, name: str, why: str) -> UsageError:
        return UsageError(
            f"{self._prefix}{name}={self._values.get(name, '')[:80]} cannot be used",
            why=why,
            remedy="correct it; the settings are those of Kafka Connect's transforms",
        )

    def without_effect(self, name: str) -> None:
        """A setting that changes nothing about data without a schema; it must still be true or false."""
        self.flag(name)

    def finish(self) -> None:
        """Raise UsageError for an unknown setting."""
        for name in sorted(self._values.keys() - self._asked):
            near = _RENAMED.get(name) or next(iter(difflib.get_close_matches(name, sorted(self._asked), 1, 0.6)), None)
            raise UsageError(
                f"{self._prefix}{name} is not a setting of it",
                why=f"its settings are {', '.join(sorted(self._asked))}",
                remedy=f"did you mean {near}?" if near else "remove it",
            )


MAX_TRANSFORMS_BYTES = 1024**2


def read_transforms(path: Path) -> dict[str, str]:
    """Return the settings in a file; raises UsageError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TRANSFORMS_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read", why=str(error), remedy="check --transforms") from error
    if len(content) > MAX_TRANSFORMS_BYTES:
        raise UsageError(f"{path} is larger than 1 MiB", why="transforms are smaller", remedy="check --transforms")
    return parse_transforms(str(path), text)


def parse_transforms(name: str, text: str) -> dict[str, str]:
    """Raise UsageError for a file that cannot be read as what its name says, or that says something twice."""
    found: dict[str, str] = {}
    for entry in parse_document(name, text):
        # Connect's own form is {"name": …, "config": {…}}.
        value = ",".join(entry.value) if isinstance(entry.value, tuple) else entry.value or ""
        found[entry.key.removeprefix("config.")] = value
    if not found:
        raise UsageError(f"{name} holds no settings", why="the document is empty", remedy="correct the file")
    for kind in ("transforms", "predicates"):
        # Dictionaries keep the order of the file.
        nested = dict.fromkeys(key.split(".")[1] for key in found if key.startswith(f"{kind}."))
        if nested and kind not in found:
            found[kind] = ",".join(nested)
    return found
