"""Libraries kept out of others that import them only where they are installed, and take a good part of a start."""

import atexit
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def run_to_exit(main: Callable[[], object], leave: Callable[[int], object]) -> None:
    """Call `main`, which ends by SystemExit, run exit handlers, flush output, and `leave` by `os._exit`.

    To take modules and objects apart before the system takes all back takes a sixth of a short command. Threads that
    still run are not waited for: what was to be waited for, `main` has waited for.
    """
    try:
        main()
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        atexit._run_exitfuncs()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:  # the interpreter knows what to say, and the exit code
            raise end from None
        leave(end.code or 0)


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
