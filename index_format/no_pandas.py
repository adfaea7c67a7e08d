"""Arrow without pandas, which pyarrow imports with its first conversion where it is installed."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Refusal(MetaPathFinder):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Raises ModuleNotFoundError for pandas, and has nothing to say of others."""
        if fullname == "pandas":
            raise ModuleNotFoundError("not for this program", name=fullname)
        return None


@contextmanager
def pandas_refused() -> Iterator[None]:
    """Who imports pandas meanwhile finds none; pyarrow looks for it once: 0.4 s of a start and 30 MB for nothing."""
    refusal = _Refusal()
    sys.meta_path.insert(0, refusal)
    try:
        yield
    finally:
        sys.meta_path.remove(refusal)
