"""Settings of transforms as files have them: Java properties, YAML, or Connect's JSON, told by the name's ending.

Maps may nest, `{transforms: {mask: {type: …}}}` being `transforms.mask.type`; where `transforms` itself is not listed,
the order is that of the file. Scalars are taken as they are written.
"""

from pathlib import Path

from blockgz.documents import parse_document
from blockgz.errors import UsageError

MAX_TRANSFORMS_BYTES = 1024**2


def read_transforms(path: Path) -> dict[str, str]:
    """The settings in a file; raises UsageError."""
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
    """Raises UsageError for a file that cannot be read as what its name says, or that says something twice."""
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
