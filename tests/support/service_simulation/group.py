"""A consumer group with cooperative rebalances: who is assigned what, and when members learn of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.service_simulation.logs import Cluster, Partition

SESSION_SECONDS = 12.0
HEARTBEAT_SECONDS = 3.0
METADATA_SECONDS = 4.0
"""Until the group notices topics that came or went."""


@dataclass
class Member:
    host: str
    topics: frozenset[str]
    on_assign: Callable[[Sequence[Partition]], None]
    on_revoke: Callable[[Sequence[Partition]], None]
    on_lost: Callable[[Sequence[Partition]], None]
    owned: set[Partition] = field(default_factory=set)
    target: set[Partition] = field(default_factory=set)
    is_out: bool = False
    """The session ended, and the member has not heard of it."""
    refusal: int | None = None
    """An error code that the member is told instead of being served."""
    is_taken_over: bool = False
    """Another process has its static id, which it does not know yet."""


class Group:
    def __init__(self, cluster: Cluster, left: Callable[[str, Partition, str], None]) -> None:
        """`left(host, partition, how)` is told when a member's ownership ended; how: revoked or lost."""
        self._cluster = cluster
        self._left = left
        self.members: list[Member] = []
        self.committed: dict[Partition, tuple[int, str | None]] = {}
        """The group's offset and its metadata."""

    def join(self, member: Member) -> None:
        self.members.append(member)
        self.rebalance()

    def leave(self, member: Member) -> None:
        if member in self.members:
            self.members.remove(member)
            self.rebalance()

    def unsubscribe(self, member: Member) -> None:
        """It gives all up, and is none of the members any more."""
        member.target.clear()
        self.serve(member, is_answered=True)
        self.leave(member)

    def forget(self, partitions: Sequence[Partition]) -> None:
        """Their owners give them up, and nobody gets them before the next rebalance."""
        for member in self.members:
            member.target.difference_update(partitions)
        self._cluster.changed()

    def unowned(self) -> set[Partition]:
        """What nobody has, nor is to have."""
        targets = {partition for member in self.members for partition in member.target}
        return {partition for partition, _ in self._cluster.partitions()} - targets

    def expire(self, host: str) -> None:
        """The sessions of a host end: the others take over what was its members'."""
        for member in [member for member in self.members if member.host == host]:
            self.members.remove(member)
            member.is_out, member.is_taken_over, member.refusal = True, False, None
        self.rebalance()

    def rebalance(self) -> None:
        """New targets, as even as they get with as few moves as that takes."""
        if self.members:
            there = [partition for partition, _ in self._cluster.partitions()]
            for member in self.members:
                member.target &= set(there)
            taken = {partition for member in self.members for partition in member.target}
            for partition in there:
                able = [member for member in self.members if partition[0] in member.topics]
                if partition not in taken and able:
                    min(able, key=lambda member: len(member.target)).target.add(partition)
            most = -(-len(there) // len(self.members))
            for member in self.members:
                for partition in sorted(member.target)[most:]:
                    other = min(self.members, key=lambda each: len(each.target))
                    if partition[0] in other.topics and len(other.target) + 1 < len(member.target):
                        member.target.remove(partition)
                        other.target.add(partition)
        self._cluster.changed()

    def is_due(self, member: Member) -> bool:
        """Whether the member is to be told something."""
        return member.is_out or bool(member.owned - member.target) or bool(self._free_for(member))

    def _free_for(self, member: Member) -> set[Partition]:
        taken = {partition for other in self.members if other is not member for partition in other.owned}
        return member.target - member.owned - taken

    def serve(self, member: Member, *, is_answered: bool) -> bool:
        """Inside a poll: callbacks that are due. Whether any was called. A client notices by itself that it is out."""
        if member.is_out:
            return self._serve_outsider(member, is_answered=is_answered)
        if not is_answered:
            return False
        if leaving := sorted(member.owned - member.target):
            member.on_revoke(leaving)
            if member.is_out:
                return True
            member.owned.difference_update(leaving)
            self._ended(member, leaving, "revoked")
            self._cluster.changed()
            return True
        if coming := sorted(self._free_for(member)):
            member.owned.update(coming)
            member.on_assign(coming)
            return True
        return False

    def _serve_outsider(self, member: Member, *, is_answered: bool) -> bool:
        owned = sorted(member.owned)
        member.owned, member.target = set(), set()
        if owned:
            self._ended(member, owned, "lost")
            member.on_lost(owned)
        if is_answered:
            member.is_out = False
            self.join(member)
        return bool(owned) or is_answered

    def _ended(self, member: Member, partitions: Sequence[Partition], how: str) -> None:
        for partition in partitions:
            self._left(member.host, partition, how)
