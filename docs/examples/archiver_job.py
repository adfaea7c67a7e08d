"""For spark-submit, which starts files that end in .py: the program `archiver`."""

from archiver.cli import main

main(prog_name="archiver")
