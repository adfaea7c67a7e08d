"""Damage on the command line: `--on-damage`, for commands that read records, and partitions that cannot be opened."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from blockgz_runtime.errors import exit_code
from blockgz_runtime.program.main import print_failure
from replayer.read.archive import DamagedPartition
from replayer.read.damage import STOP, DamagePolicy, SkipDamage, SkippedRange
from replayer.read.partition import ArchivedPartition

F = TypeVar("F", bound=Callable[..., Any])

DAMAGE_FOUND = 3
STOPS, SKIPS = "stop", "skip"


def damage_option(function: F) -> F:
    """Adds --on-damage; passes `on_damage: str`, for DamagePolicies."""
    option = click.option(
        "--on-damage",
        type=click.Choice([STOPS, SKIPS]),
        default=STOPS,
        show_default=True,
        help="At a damaged block: stop, or skip exactly its records and name their offsets.",
    )
    return option(function)


def told(damaged: Sequence[DamagedPartition], *, others: bool) -> int:
    """Says on stderr what cannot be read; the exit code that this means where there are `others` or none."""
    for each in damaged:
        print_failure(each.error)
    return 0 if not damaged else DAMAGE_FOUND if others else exit_code(damaged[0].error)


def damaged_json(damaged: Sequence[DamagedPartition]) -> list[dict[str, Any]]:
    """Partitions that cannot be read, for `--json`."""
    return [{"partition": each.partition, "error": each.error.reason} for each in damaged]


class DamagePolicies:
    """What each partition's scan does at damage, and what all of them skipped."""

    def __init__(self, on_damage: str) -> None:
        self._skips = on_damage == SKIPS
        self._partitions: list[tuple[ArchivedPartition, SkipDamage]] = []

    def of(self, partition: ArchivedPartition) -> DamagePolicy:
        """For one scan of the partition."""
        if not self._skips:
            return STOP
        policy = SkipDamage()
        self._partitions.append((partition, policy))
        return policy

    @property
    def skipped(self) -> list[tuple[ArchivedPartition, SkippedRange]]:
        """What was passed over so far, once where several scans came to it."""
        return list(
            dict.fromkeys((partition, each) for partition, policy in self._partitions for each in policy.skipped)
        )

    def report(self) -> int:
        """Names what was skipped on stderr; the exit code that this means."""
        for partition, (start, end, reason) in self.skipped:
            click.echo(f"FAILURE {partition} skipped offsets {start}..{end}: {reason}", err=True)
        return DAMAGE_FOUND if self.skipped else 0


STOPPING = DamagePolicies(STOPS)
