"""`python -m benchmarks.prototype.archiver_with LIBRARY …`: the program `archiver`, fetching by the prototype."""

import sys
from pathlib import Path

from archiver.cli import main
from archiver.ingest import service
from benchmarks.prototype.native import Native
from benchmarks.prototype.source import in_place_of_ours

if __name__ == "__main__":
    library = Path(sys.argv.pop(1))
    service.KafkaSource = in_place_of_ours(Native(library))  # type: ignore[assignment,misc]
    main(prog_name="archiver")
