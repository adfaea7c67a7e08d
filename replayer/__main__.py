"""`python -m replayer`, and the program `replayer`."""

import signal

# A KeyboardInterrupt inside the initialisation of a library in C crashes it: until all is imported, SIGINT ends the
# process by the system's default action, as SIGTERM does.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import gc
import os
import sys
from contextlib import nullcontext

from blockgz.process import explain_crashes, pandas_refused, run_to_exit, without_math_threads
from replayer.cli import main

PANDAS_COMMANDS = ("spark",)


def run() -> None:
    without_math_threads()
    # Loading libraries makes objects that stay: looking through them again and again takes a tenth of a short command.
    gc.set_threshold(100_000, 50, 50)
    explain_crashes()
    wanted = sys.argv[1:2] in ([name] for name in PANDAS_COMMANDS)
    with nullcontext() if wanted else pandas_refused():
        run_to_exit(lambda: main(prog_name="replayer"), os._exit)


if __name__ == "__main__":
    run()
