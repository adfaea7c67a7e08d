"""Objects on their way to Spark's workers, where this package may be missing."""

import pickle
from collections.abc import Callable
from typing import Any


class Shipped:
    """What Spark pickles for workers; one whose Python lacks this package says so, and what to do."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str, bytes]]:
        kind = type(self)
        return _opener(), (kind.__module__, kind.__qualname__, pickle.dumps(self.__dict__))


def _opener() -> Callable[..., Any]:
    """A function that cloudpickle sends as code and not by its name, as it does with functions inside others."""

    def opened(module: str, name: str, state: bytes) -> Any:
        import importlib  # noqa: PLC0415
        import pickle  # noqa: PLC0415
        import sys  # noqa: PLC0415

        try:
            made: Any = object.__new__(getattr(importlib.import_module(module), name))
            made.__dict__.update(pickle.loads(state))
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"the Python of Spark's workers, {sys.executable}, has no blockgz: {error}\n"
                "why:   tasks run in Python processes: spark.pyspark.python or PYSPARK_PYTHON, otherwise python3\n"
                "do:    install the driver's version of blockgz[spark] there, or ship an environment with "
                "--archives and set PYSPARK_PYTHON to its Python"
            ) from None
        return made

    return opened
