"""Results by date as JSON: merged section by section, and compared with the last ones."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from benchmarks.figures import Json

FOLDER = Path(__file__).parent / "results"
FELL = 0.8
"""A ratio below this share of its last value is worth a warning."""


class Change(NamedTuple):
    """A ratio of this time and of the last time."""

    section: str
    name: str
    before: float
    now: float

    @property
    def fell(self) -> bool:
        """Whether it is worth a warning; every ratio is the larger the better."""
        return self.now < self.before * FELL


def merged(old: Json | None, machine: Mapping[str, str], section: str, result: Json) -> Json:
    """The results of a day with one more section, which takes the place of an older run of it."""
    sections = dict(old["sections"]) if old is not None else {}
    return {"machine": dict(machine), "sections": {**sections, section: result}}


def changes(before: Json, now: Json) -> Iterator[Change]:
    for section, result in now["sections"].items():
        ratios = before["sections"].get(section, {}).get("ratios", {})
        for name, ratio in result["ratios"].items():
            if name in ratios:
                yield Change(section, name, ratios[name], ratio)


def store(path: Path, result: Json) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(orjson.dumps(rounded(result), option=orjson.OPT_INDENT_2) + b"\n")


def load(path: Path) -> Json | None:
    """What was stored; None where nothing was."""
    found: Json | None = orjson.loads(path.read_bytes()) if path.exists() else None
    return found


def newest(folder: Path, kind: str, before: str | None = None) -> Path | None:
    """The newest results of that kind (`full` or `quick`), of a day before `before` if that is given."""
    paths = sorted(folder.glob(f"*-{kind}.json"))
    return next((path for path in reversed(paths) if before is None or path.name < before), None)


def rounded(value: Any) -> Any:
    """Numbers to four significant places behind the point: files that people can read and compare."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value
