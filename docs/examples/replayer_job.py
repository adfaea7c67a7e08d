"""For spark-submit, which starts files that end in .py: the program `replayer`."""

from replayer.cli import main

main(prog_name="replayer")
