"""Libraries kept out of others that import them only where they are installed, and take a good part of a start."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Refusal(MetaPathFinder):
    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Raises ModuleNotFoundError for the one, and has nothing to say of others."""
        if fullname == self._name:
            raise ModuleNotFoundError("not for this program", name=fullname)
        return None


@contextmanager
def refused(name: str) -> Iterator[None]:
    """Who imports that library meanwhile finds none, unless it is loaded already."""
    refusal = _Refusal(name)
    sys.meta_path.insert(0, refusal)
    try:
        yield
    finally:
        sys.meta_path.remove(refusal)


@contextmanager
def pandas_refused() -> Iterator[None]:
    """Pyarrow looks for pandas once, with its first conversion: 0.4 s of a start and 30 MB for nothing."""
    with refused("pandas"):
        yield
