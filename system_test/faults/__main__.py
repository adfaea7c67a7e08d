"""`python -m system_test.faults`: a campaign of many rounds, each with servers, topics and an archive of its own.

A round's schedule is a function of the campaign's seed and the round's number. The state file holds what is done, so
`--resume` goes on with the round that was interrupted. A broken promise ends the campaign (exit 1) and prints the
round's seed, its schedule and where the evidence lies; with `--keep-going` that round counts for nothing, its evidence
is put aside, and the next one begins.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from system_test.faults.campaign import Round, RoundFailedError, RoundSettings

_ADDED = ("faults", "store_faults", "archiver_starts", "archived_records", "chunks", "gaps", "incarnations")


def main() -> int:
    """Run the campaign; 0 when every promise held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=3000, help="of processes, servers and topics, in all rounds")
    parser.add_argument("--a-round", type=int, default=100, help="so many of them in one round")
    parser.add_argument("--seed", default=str(time.time_ns() % 1_000_000))
    parser.add_argument("--gap", type=float, default=3.0, help="seconds between two of them on average")
    parser.add_argument("--store-rate", type=float, default=0.1, help="share of requests that meet a store fault")
    parser.add_argument("--home", type=Path, default=Path("build/faults"), help="state, logs and evidence")
    parser.add_argument("--resume", action="store_true", help="go on where the state file says")
    parser.add_argument("--keep-going", action="store_true", help="go on after a round that failed")
    options = parser.parse_args()
    options.home.mkdir(parents=True, exist_ok=True)
    state_file = options.home / "state.json"
    state: dict[str, Any] = {"seed": options.seed, "rounds": [], "failed": 0}
    if options.resume and state_file.exists():
        state = json.loads(state_file.read_text())
    while (done := sum(figures["faults"] for figures in state["rounds"])) < options.faults:
        number = len(state["rounds"]) + state["failed"] + 1
        settings = RoundSettings(
            seed=f"{state['seed']}/{number}",
            faults=min(options.a_round, options.faults - done),
            mean_gap=options.gap,
            store_rate=options.store_rate,
        )
        print(f"round {number}: seed {settings.seed}, {done} of {options.faults} faults done", flush=True)
        started = time.time()
        try:
            figures = Round(settings, options.home / "round").run()
        except RoundFailedError as error:
            print(f"FAILED {error}", flush=True)
            if not options.keep_going:
                return 1
            state["failed"] += 1
            (options.home / "round").rename(options.home / f"failed-{number}")
            state_file.write_text(json.dumps(state, indent=1))
            continue
        figures["seconds"] = round(time.time() - started)
        state["rounds"].append(figures)
        state_file.write_text(json.dumps(state, indent=1))
        print(json.dumps(figures), flush=True)
    print(summary(state), flush=True)
    return 1 if state["failed"] else 0


def summary(state: dict[str, Any]) -> str:
    """The campaign's figures as JSON."""
    rounds: list[dict[str, Any]] = state["rounds"]
    totals: Counter[str] = Counter()
    for figures in rounds:
        totals.update({name: figures.get(name, 0) for name in _ADDED})
    longest = max(figures["lag_seconds"] for figures in rounds)
    return json.dumps(
        {
            "seed": state["seed"],
            "rounds": len(rounds),
            "failed": state["failed"],
            **totals,
            "longest_lag_seconds": longest,
        }
    )


if __name__ == "__main__":
    sys.exit(main())
