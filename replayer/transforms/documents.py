"""Settings of transforms as files have them: Java properties, YAML, or Connect's JSON, told by the name's ending.

Maps may nest, `{transforms: {mask: {type: …}}}` being `transforms.mask.type`; where `transforms` itself is not listed,
the order is that of the file. Scalars are taken as they are written.
"""

from blockgz_runtime.documents import parse_document
from blockgz_runtime.errors import UsageError


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
