"""The choice of this package's C extension, made once: without it, Python does the work."""

from collections.abc import Callable
from typing import Any, NamedTuple

_INTERFACE = 2


class Kernel(NamedTuple):
    """A C extension, or why it is not in use."""

    module: Any
    """None if it is not in use."""
    why_not: str

    def __bool__(self) -> bool:
        return self.module is not None


def chosen(load: Callable[[], Any], interface: int) -> Kernel:
    """Return the extension that `load` imports, unless it fails with ImportError or has another interface."""
    try:
        module = load()
    except ModuleNotFoundError:
        return Kernel(None, "it is not installed, for example because there was no C compiler")
    except ImportError as error:
        return Kernel(None, str(error))
    found = getattr(module, "INTERFACE", None)
    if found != interface:
        return Kernel(None, f"it was built from other sources: its interface is {found}, not {interface}")
    return Kernel(module, "")


def _load() -> Any:
    import index_format._kernel as kernel  # type: ignore[import-not-found]  # noqa: PLC0415

    return kernel


# In C: record format json, and the records as canonical bytes and as Kafka's record batches.
KERNEL = chosen(_load, _INTERFACE)
