"""`--on-damage`, for commands that read records: stop at the first damage, or go on and say what is missing."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..archive import ArchivedPartition
from ..damage import STOP, DamagePolicy, SkipDamage, SkippedRange

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
