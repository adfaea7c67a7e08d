"""The long run: `python -m system_test.replay_kills --records 1000000 --kills 30`."""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from dataclasses import asdict
from pathlib import Path

from system_test.replay_kills.killing import prepare, replay_and_kill
from system_test.support.archiving import folder_site
from system_test.support.kafka_broker import KafkaBroker


def main() -> None:
    """Prints what happened; exits with 1 when the target is not the archive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    with KafkaBroker() as broker, tempfile.TemporaryDirectory(prefix="blockgz-replay-kills-") as folder:
        site = folder_site(broker.bootstrap, Path(folder) / "archive")
        prepare(site, "kills", asked.records, asked.seed)
        outcome = replay_and_kill(site, "kills", "kills-copy", asked.records, asked.kills, asked.seed)
    print(json.dumps(asdict(outcome), indent=1), flush=True)
    if outcome.lost or outcome.doubled or outcome.out_of_order:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
