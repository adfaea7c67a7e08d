"""`python -m system_test.faults`: a campaign of many rounds, each with servers, topics and an archive of its own.

A round's schedule is a function of the campaign's seed and the round's number. The state file holds what is done, so
`--resume` goes on with the round that was interrupted. A broken promise prints the round's seed and its schedule, puts
the evidence aside and ends the campaign (exit 1); that round counts for nothing. With `--keep-going`, and when it is
resumed, the next one begins.
"""

import argparse
import json
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from system_test.faults.campaign import Round, RoundFailedError, RoundSettings

_ADDED = (
    *("disruptions", "store_faults", "seconds", "archiver_starts", "marker_samples", "group_samples", "hashed_objects"),
    *("acknowledged_committed", "acknowledged_aborted", "acknowledged_unknown", "acknowledged_without_offset"),
    *("archived_records", "chunks"),
    *("gaps", "gap_offsets", "lost_to_truncation", "lost_to_deletion", "compacted_before_archived"),
    *("records_of_deleted_topics", "compared_with_topic", "incarnations"),
    *("erased", "pruned", "gone_for_good", "given_up", "gaps_of_lost_objects", "deletions"),
    *(f"read_{kind}" for kind in ("Found", "Erased", "Pruned", "Hole", "Gap", "Unavailable", "Damage")),
)
_BY_KIND = (
    "by_kind",
    "store_faults_by_kind",
    "lost_in_hand_of",
    "ended_by_themselves",
    "warnings",
    "maintenance",
    "losses",
)


def main() -> int:
    """Run the campaign; 0 when every promise held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=3000, help="of all kinds, in all rounds; at least")
    parser.add_argument("--disruptions", type=int, help="of them of processes, servers and topics; a fifth")
    parser.add_argument("--a-round", type=int, default=60, help="so many disruptions in one round")
    parser.add_argument("--seed", default=str(time.time_ns() % 1_000_000))
    parser.add_argument("--gap", type=float, default=2.5, help="seconds between two disruptions on average")
    parser.add_argument("--store-rate", type=float, default=0.2, help="share of requests that meet a store fault")
    parser.add_argument("--home", type=Path, default=Path("build/faults"), help="state, logs and evidence")
    parser.add_argument("--resume", action="store_true", help="go on where the state file says")
    parser.add_argument("--keep-going", action="store_true", help="go on after a round that failed")
    options = parser.parse_args()
    disruptions = options.faults // 5 if options.disruptions is None else options.disruptions
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options.home.mkdir(parents=True, exist_ok=True)
    state_file = options.home / "state.json"
    state: dict[str, Any] = {"seed": options.seed, "rounds": [], "failed": 0}
    if options.resume and state_file.exists():
        state = json.loads(state_file.read_text())
    while (done := Done.of(state["rounds"])).is_short_of(options.faults, disruptions):
        number = len(state["rounds"]) + state["failed"] + 1
        settings = RoundSettings(
            seed=f"{state['seed']}/{number}",
            disruptions=options.a_round,
            store_faults=-(-(options.faults - disruptions) * options.a_round // disruptions),
            mean_gap=options.gap,
            store_rate=options.store_rate,
        )
        print(f"round {number}: seed {settings.seed}, {done} so far", flush=True)
        started = time.time()
        try:
            figures = Round(settings, options.home / "round").run()
        except RoundFailedError as error:
            evidence = options.home / f"failed-{number}"
            print(f"FAILED {error}\nevidence lies in {evidence}", flush=True)
            state["failed"] += 1
            (options.home / "round").rename(evidence)
            state_file.write_text(json.dumps(state, indent=1))
            if options.keep_going:
                continue
            return 1
        figures["seconds"] = round(time.time() - started)
        state["rounds"].append(figures)
        state_file.write_text(json.dumps(state, indent=1))
        print(json.dumps(figures), flush=True)
    print(json.dumps(summary(state), indent=1), flush=True)
    return 1 if state["failed"] else 0


@dataclass(frozen=True)
class Done:
    """How many faults there were: disruptions hit processes, servers and topics; the others requests to the store."""

    disruptions: int
    store_faults: int

    @classmethod
    def of(cls, rounds: list[dict[str, Any]]) -> Self:
        return cls(*(sum(figures[name] for figures in rounds) for name in ("disruptions", "store_faults")))

    def is_short_of(self, faults: int, disruptions: int) -> bool:
        """Whether there are to be more."""
        return self.disruptions + self.store_faults < faults or self.disruptions < disruptions

    def __str__(self) -> str:
        return f"{self.disruptions} disruptions and {self.store_faults} store faults"


def summary(state: dict[str, Any]) -> dict[str, Any]:
    """The campaign's figures: all that rounds counted added up, and the longest lag."""
    rounds: list[dict[str, Any]] = state["rounds"]
    totals: Counter[str] = Counter()
    by_kind: dict[str, Counter[str]] = {name: Counter() for name in _BY_KIND}
    for figures in rounds:
        totals.update({name: figures.get(name, 0) for name in _ADDED})
        for name, counts in by_kind.items():
            counts.update(figures.get(name, {}))
    return {
        "seed": state["seed"],
        "rounds": len(rounds),
        "failed": state["failed"],
        "faults": totals["disruptions"] + totals["store_faults"],
        **totals,
        **{name: dict(counts.most_common()) for name, counts in by_kind.items()},
        "longest_lag_seconds": max(figures["lag_seconds"] for figures in rounds),
        "max_rss_mib": max(figures["max_rss_mib"] for figures in rounds),
    }


if __name__ == "__main__":
    sys.exit(main())
