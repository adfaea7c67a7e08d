"""Arrow's compute functions, loaded with the first that is used: they take a tenth of the start of a look-up."""

from typing import Any


def __getattr__(name: str) -> Any:
    import pyarrow.compute as pc  # noqa: PLC0415

    found = globals()[name] = getattr(pc, name)
    return found
