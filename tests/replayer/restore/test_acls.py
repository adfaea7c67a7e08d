from collections.abc import Collection
from pathlib import Path

import pytest
from msgspec.structs import replace

from blockgz.errors import AccessDenied
from blockgz.store.local import LocalStore
from index_format.identity import Acl
from replayer.restore.consumers import Applied, acls_to_create, set_acls
from replayer.restore.document import RestorePlan, parse_plan, plan_text
from replayer.restore.folder import RestoreFolder
from replayer.restore.running import outcome_document, plan_document
from tests.replayer.restore.test_document import PLAN, topic


def acl(name: str, principal: str = "User:a", pattern: str = "LITERAL") -> Acl:
    return Acl(pattern, name, principal, "*", "READ", "ALLOW")


KNOWN = replace(
    PLAN,
    create_acls=True,
    topics=(
        topic("a~1", "copy.a", acls=(acl("a"), acl("*", "User:b"), acl("", "User:b", "PREFIXED"))),
        topic("b~1", "copy.b", acls=()),
        topic("c~1", "copy.c"),
        topic("d~1", "copy.d", acls=(acl("d"),), refused="it exists"),
    ),
)


class Cluster:
    def __init__(self, left_out: tuple[Acl, ...] = (), error: Exception | None = None) -> None:
        self.created: list[Acl] = []
        self._left_out = left_out
        self._error = error

    def create_acls(self, acls: Collection[Acl]) -> tuple[Acl, ...]:
        if self._error is not None:
            raise self._error
        self.created += acls
        return self._left_out


@pytest.fixture
def folder(tmp_path: Path) -> RestoreFolder:
    return RestoreFolder(LocalStore(tmp_path), "night")


def test_topics_get_literal_acls_on_their_new_names() -> None:
    assert acls_to_create(KNOWN) == {"copy.a": (acl("copy.a"), acl("copy.a", "User:b"))}
    assert (KNOWN.acls, KNOWN.without_acls) == (3, 1)
    assert parse_plan(plan_text(KNOWN), "plan.json") == KNOWN


def test_they_are_created_once(folder: RestoreFolder) -> None:
    cluster = Cluster()
    done = set_acls(KNOWN, folder, cluster)
    assert done.counts == {"copy.a": 2}
    assert done.notes == ["no ACL is created for copy.c: the archive does not know which there were"]
    again = set_acls(KNOWN, folder, cluster)
    assert (again.counts, len(cluster.created)) == ({"copy.a": 2}, 2)
    assert again.notes == ["the ACLs were created by an earlier run"]


def test_what_the_client_does_not_know_is_named(folder: RestoreFolder) -> None:
    done = set_acls(KNOWN, folder, Cluster(left_out=(acl("copy.a"),)))
    assert done.counts == {"copy.a": 1}
    assert done.notes[0] == "copy.a: ALLOW READ for User:a from * is not created: this release does not know it"


def test_after_a_failure_they_are_tried_again(folder: RestoreFolder) -> None:
    with pytest.raises(AccessDenied):
        set_acls(KNOWN, folder, Cluster(error=AccessDenied("not allowed")))
    assert set_acls(KNOWN, folder, Cluster()).counts == {"copy.a": 2}


@pytest.mark.parametrize(
    ("acls", "verdict"), [(None, "OK"), (Applied({"a": 2}), "OK"), (Applied({}, error="x"), "FAILURE")]
)
def test_the_report(acls: Applied | None, verdict: str) -> None:
    document = outcome_document("night", RestorePlan(archive_id="a", at=1), [], None, acls, 1.0)
    assert document["verdict"] == verdict
    assert (document["acls"], document["acls_error"]) == (
        None if acls is None else acls.counts,
        None if acls is None else acls.error,
    )
    totals = plan_document("night", KNOWN, 1.0)["totals"]
    assert (totals["acls"], totals["topics_with_unknown_acls"]) == (3, 1)
