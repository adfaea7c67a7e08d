"""The ACLs of an archived topic for one of another name, and compared with those of a live one. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from index_format.acls import LITERAL, Acl


class AclComparison(NamedTuple):
    """The ACLs of a topic by which the archived and the live one differ, as ACLs on its name alone.

    `known` says whether the archive knows them.
    """

    known: bool = True
    missing: tuple[Acl, ...] = ()
    """The live topic lacks them."""
    extra: tuple[Acl, ...] = ()
    """Only the live topic has them."""


def literal_acls(acls: Iterable[Acl], topic: str) -> tuple[Acl, ...]:
    """ACLs on the name of a topic alone that grant and deny there what the given ones do; in order, each once."""
    return tuple(sorted({replace(each, pattern=LITERAL, name=topic) for each in acls}))


def compare_acls(topic: str, archived: Iterable[Acl] | None, live: Iterable[Acl]) -> AclComparison:
    """What they grant and deny is compared, by whatever pattern; `archived` is None where that is not known."""
    if archived is None:
        return AclComparison(known=False)
    then, now = literal_acls(archived, topic), literal_acls(live, topic)
    return AclComparison(
        missing=tuple(each for each in then if each not in now), extra=tuple(each for each in now if each not in then)
    )


def acl_text(acl: Acl) -> str:
    """What it grants or denies, for people: `ALLOW READ for User:billing from *`."""
    return f"{acl.permission} {acl.operation} for {_shown(acl.principal)} from {_shown(acl.host)}"


def _shown(text: str) -> str:
    return text if text.isprintable() else repr(text)
