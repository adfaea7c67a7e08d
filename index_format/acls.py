"""The ACLs of Kafka that concern a topic (FORMAT.md, "Objects")."""

from collections.abc import Iterable, Iterator

import msgspec

from index_format.objects import Word

LITERAL, PREFIXED = "LITERAL", "PREFIXED"
EVERY_TOPIC = "*"
"""A literal name that means all topics."""


class Acl(msgspec.Struct, frozen=True, order=True):
    """One ACL on topics, with Kafka's words in capitals: who may do what, or may not, from which host.

    `pattern` says whether `name` is that of a topic (LITERAL; `*` means all topics), or what names begin with
    (PREFIXED). `permission` is ALLOW or DENY.
    """

    pattern: Word
    name: str
    principal: str
    host: str
    operation: Word
    permission: Word


class AclsOfTopics:
    """The ACLs of a cluster, by what they name: each topic is looked up, whatever the number of ACLs."""

    def __init__(self, acls: Iterable[Acl]) -> None:
        self._by_name: dict[tuple[str, str], list[Acl]] = {}
        for each in acls:
            self._by_name.setdefault((each.pattern, each.name), []).append(each)

    def concerning(self, topic: str) -> tuple[Acl, ...]:
        """Those that name the topic, the beginning of its name, or all topics; in order, each once."""
        return tuple(sorted({acl for name in _names(topic) for acl in self._by_name.get(name, ())}))


def _names(topic: str) -> Iterator[tuple[str, str]]:
    yield LITERAL, topic
    yield LITERAL, EVERY_TOPIC
    for length in range(len(topic) + 1):
        yield PREFIXED, topic[:length]
