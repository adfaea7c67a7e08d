"""Consumer groups in memory, as `replayer.groups.applying.Groups` asks for them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from blockgz.kafka.groups import GroupMembers, GroupOffset


@dataclass
class FakeGroups:
    """By group, topic and partition; `active` are groups with consumers, `deaf` ones that take no position."""

    stored: dict[str, dict[str, dict[int, GroupOffset]]] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)
    deaf: set[str] = field(default_factory=set)
    crash_before: str | None = None

    def members(self, groups: Sequence[str]) -> dict[str, GroupMembers]:
        return {
            group: GroupMembers(group in self.active, "STABLE" if group in self.active else "EMPTY", ("client-1",))
            for group in groups
        }

    def positions(self, group: str, topic: str, partitions: Collection[int]) -> dict[int, GroupOffset]:
        stored = self.stored.get(group, {}).get(topic, {})
        return {partition: stored[partition] for partition in partitions if partition in stored}

    def has_others(self, group: str, topic: str, partitions: Collection[int]) -> bool:
        stored = {
            (each, partition) for each, positions in self.stored.get(group, {}).items() for partition in positions
        }
        return bool(stored - {(topic, partition) for partition in partitions})

    def set_positions(self, group: str, topic: str, positions: Mapping[int, GroupOffset]) -> None:
        if group == self.crash_before:
            raise RuntimeError("the program ends here")
        if group not in self.deaf:
            self.stored.setdefault(group, {}).setdefault(topic, {}).update(positions)

    def delete(self, group: str) -> None:
        self.stored.pop(group, None)
