"""The ACLs of a restore: created for its topics under their new names, once all records are proved."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from blockgz.errors import listed
from index_format.acls import Acl
from replayer.replay.stages import wall_clock
from replayer.restore.document import RestorePlan
from replayer.restore.folder import AclsDone, RestoreFolder
from replayer.topics import acl_text, literal_acls


class AclCreation(Protocol):
    """Creates ACLs in the target."""

    def create(self, acls: Collection[Acl]) -> tuple[Acl, ...]:
        """Creates ACLs, unless they exist; those that are left out, because the client does not know their words."""


class AclsOutcome(NamedTuple):
    """The number of ACLs by topic, what a person should know, and why none was created, if that is so."""

    created: Mapping[str, int]
    notes: Sequence[str] = ()
    error: str | None = None


def acls_to_create(plan: RestorePlan) -> dict[str, tuple[Acl, ...]]:
    """By topic of the target its ACLs, on its name alone; without topics that have none."""
    wanted = {each.target: literal_acls(each.acls or (), each.target) for each in plan.restorable}
    return {target: acls for target, acls in sorted(wanted.items()) if acls}


def set_acls(plan: RestorePlan, folder: RestoreFolder, acls: AclCreation) -> AclsOutcome:
    """Creates the ACLs of all topics, which are restored, unless an earlier run did; raises what `acls` raises."""
    done = folder.acls()
    if done is not None:
        return AclsOutcome(done.acls, ["the ACLs were created by an earlier run"])
    wanted = acls_to_create(plan)
    left_out = acls.create([each for of_topic in wanted.values() for each in of_topic])
    created = {target: sum(each not in left_out for each in of_topic) for target, of_topic in wanted.items()}
    folder.add_acls(AclsDone(acls=created, at=wall_clock()))
    notes = [f"{each.name}: {acl_text(each)} is not created: this release does not know it" for each in left_out]
    return AclsOutcome(created, [*notes, *_unknown(plan)])


def _unknown(plan: RestorePlan) -> list[str]:
    unknown = [each.target for each in plan.restorable if each.acls is None]
    if not unknown:
        return []
    return [f"no ACL is created for {listed(unknown)}: the archive does not know which there were"]
