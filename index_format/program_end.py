"""The end of a program's process."""

import atexit
import sys
from collections.abc import Callable


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
