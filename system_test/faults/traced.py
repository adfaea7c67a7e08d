"""`archiver` as it is, which on SIGUSR1 writes the stack of every thread to stderr: for whoever finds it hanging."""

from __future__ import annotations

import faulthandler
import runpy
import signal

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    runpy.run_module("archiver", run_name="__main__", alter_sys=True)
