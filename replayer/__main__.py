"""`python -m replayer`, and the program `replayer`."""

import gc
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

from .cli import main

PANDAS_COMMANDS = ("spark",)


class _WithoutPandas(MetaPathFinder):
    """Where pandas is installed, pyarrow loads it with its first array: half a second, for nothing that is used."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:  # noqa: ARG002
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out", name=fullname)


def run() -> None:
    """The process of one command."""
    # Loading libraries makes objects that stay: looking through them again and again takes a tenth of a short command.
    gc.set_threshold(100_000, 50, 50)
    if sys.argv[1:2] not in ([name] for name in PANDAS_COMMANDS):
        sys.meta_path.insert(0, _WithoutPandas())
    main(prog_name="replayer")


if __name__ == "__main__":
    run()
