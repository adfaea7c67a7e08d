"""`python -m archiver`, and the program `archiver`."""

import signal

# A KeyboardInterrupt inside the initialisation of a library in C crashes it: until all is imported, SIGINT ends the
# process by the system's default action, as SIGTERM does.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import gc
import os

from archiver.cli import main
from blockgz.process import explain_crashes, run_to_exit, without_math_threads


def run() -> None:
    without_math_threads()
    # Loading libraries makes objects that stay, and thousands of messages and lines come and go a moment, none of them
    # in a cycle: collections find nothing.
    gc.set_threshold(100_000, 50, 50)
    explain_crashes()
    run_to_exit(lambda: main(prog_name="archiver"), os._exit)


if __name__ == "__main__":
    run()
