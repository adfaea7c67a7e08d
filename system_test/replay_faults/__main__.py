"""The long run: `python -m system_test.replay_faults --rounds 200`.

A round is a function of the campaign's seed and its number. A broken promise prints both, with what happened and what
the programs said, and ends the campaign with exit code 1; with `--keep-going` the next round begins.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from system_test.replay_faults.campaign import Round, RoundFailedError
from system_test.replay_faults.schedule import planned
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import run

ADDED = ("runs", "records", "repeated", "repeated_in_one_run", "proved", "lost_commits", "seconds")


def main() -> int:
    """Runs the campaign; 0 when every promise held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1, help="the number of the first round")
    parser.add_argument("--seed", default=str(time.time_ns() % 1_000_000))
    parser.add_argument("--records", type=int, default=8000, help="in a round")
    parser.add_argument("--keep-going", action="store_true", help="go on after a round that failed")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    proves = "--job" in run("replayer", "verify", "--help").stdout
    rounds: list[dict[str, Any]] = []
    failed = 0
    try:
        with KafkaBroker() as broker, tempfile.TemporaryDirectory(prefix="blockgz-replay-faults-") as folder:
            for number in range(asked.first, asked.first + asked.rounds):
                plan = planned(f"{asked.seed}/{number}")
                print(f"round {number}: {plan}", flush=True)
                home = Path(folder) / str(number)
                try:
                    figures = Round(plan, broker, home, f"copy-{number}", asked.records, proves).run()
                except RoundFailedError as error:
                    print(f"FAILED {error}", flush=True)
                    failed += 1
                    if not asked.keep_going:
                        break
                    continue
                rounds.append({"mode": plan.mode.value, "routing": plan.routing.option, **figures})
                print(json.dumps(rounds[-1]), flush=True)
    finally:
        print(json.dumps({"seed": asked.seed, "failed": failed, **summary(rounds)}, indent=1), flush=True)
    return 1 if failed else 0


def summary(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    totals, kinds, shapes = Counter[str](), Counter[str](), Counter[str]()
    for figures in rounds:
        totals.update({name: figures.get(name, 0) for name in ADDED})
        kinds.update(figures["by_kind"])
        shapes.update([figures["mode"], f"--partitions {figures['routing']}", figures["outcome"]])
    return {"rounds": len(rounds), **shapes, **totals, "disruptions": kinds.total(), "by_kind": dict(kinds)}


if __name__ == "__main__":
    sys.exit(main())
