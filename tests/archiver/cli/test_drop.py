"""`archiver drop` on a folder: what goes, in which order, and what it refuses."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from archiver.cli import main
from archiver.errors import DropRefused
from archiver.maintain.drop import PlannedDrop
from blockgz.errors import AccessDenied
from blockgz.store.local import LocalStore
from index_format.identity import parse_inventory
from index_format.keys import TopicFolder, configs_home, dated_key, groups_home
from replayer.cli import main as replayer
from tests.support.archives import ArchiveWriter, records
from tests.support.mock_cluster import MockCluster

HOURS_AGO = 7200


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["drop", *arguments])


def keys(root: Path) -> set[str]:
    return {listed.key for listed in LocalStore(root).list("")}


def claimed(root: Path) -> set[str]:
    inventory = parse_inventory((root / "_inventory.json").read_bytes(), "it")
    return {str(each.folder) for each in inventory.incarnations}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two incarnations of `orders`, and topics whose names begin so, all written two hours ago."""
    monkeypatch.setattr(LocalStore, "clock", lambda _: time.time() + HOURS_AGO)
    writer = ArchiveWriter(tmp_path)
    for topic, incarnation in (("orders", 1), ("orders", 2), ("orders-eu", 1), ("order", 1)):
        writer.partition(topic, 0, incarnation=incarnation).commit(records(range(5)))
        folder = TopicFolder(topic, incarnation)
        writer.put(dated_key(groups_home("topic", folder), 5), b"table")
        writer.put(dated_key(configs_home("topic", folder), 5), b"config")
    return tmp_path


def test_everything_of_the_topic_goes_and_readers_do_not_know_it(root: Path) -> None:
    before = keys(root)
    assert run("orders", "-a", str(root), "--dry-run").exit_code == 0
    assert keys(root) == before
    result = run("orders", "-a", str(root), "--yes", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    gone = {key for key in before if key.startswith(("topic=orders/", "topic=orders~"))}
    assert (told["dropped"], told["objects"]) == (True, len(gone))
    assert [each["topic"] for each in told["incarnations"]] == ["orders~2", "orders"]
    assert keys(root) == before - gone
    assert claimed(root) == {"orders-eu", "order"}
    for command in (("describe", "orders"), ("get", "orders:0:1")):
        assert CliRunner().invoke(replayer, [*command, "-a", str(root)]).exit_code == 4
    assert CliRunner().invoke(replayer, ["verify", "-a", str(root)]).exit_code == 0
    again = run("orders", "-a", str(root), "--yes")
    assert (again.exit_code, "is not in the archive" in again.stderr) == (4, True)


def test_it_says_that_no_cluster_was_asked_and_asks_for_the_name(root: Path) -> None:
    refused = run("orders", "-a", str(root))
    assert refused.exit_code == 2
    assert "nobody checked whether the cluster has it" in refused.stderr
    assert "nothing was deleted" in refused.stderr


@pytest.mark.parametrize(("topic", "code"), [("missing", 4), ("orders~1", 2), ("ord*", 2)])
def test_a_topic_is_named_in_full(root: Path, topic: str, code: int) -> None:
    assert run(topic, "-a", str(root), "--yes").exit_code == code


def test_what_was_written_lately_stays(root: Path) -> None:
    before = keys(root)
    refused = run("orders", "-a", str(root), "--yes", "--idle", "3h")
    assert refused.exit_code == 1
    assert "an archiver may be running" in refused.stderr
    assert keys(root) == before


def test_what_is_written_after_the_plan_stops_it(root: Path) -> None:
    store = LocalStore(root)
    plan = PlannedDrop(store, str(root), "orders", 60)
    (root / "topic=orders/_late").write_bytes(b"")
    before = keys(root)
    with pytest.raises(DropRefused):
        plan.carry_out()
    assert keys(root) == before


def test_what_the_store_refuses_is_deleted_by_the_next_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted = LocalStore.delete

    def refusing(store: LocalStore, key: str) -> None:
        if key.endswith(".gz"):
            raise AccessDenied(f"{key} is locked")
        deleted(store, key)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "delete", refusing)
        assert run("orders", "-a", str(root), "--yes").exit_code != 0
    left = {key for key in keys(root) if key.startswith("topic=orders")}
    assert {"topic=orders/_topic.json", "topic=orders~2/_topic.json"} <= left, "incarnations stay in a row"
    assert not [key for key in left if key.startswith("topic=orders~2/") and key.endswith("last_chunk_index.json")]
    assert {"orders", "orders~2"} <= claimed(root)
    assert run("orders", "-a", str(root), "--yes").exit_code == 0
    assert claimed(root) == {"orders-eu", "order"}


def test_a_topic_that_the_cluster_has_is_not_dropped(root: Path) -> None:
    cluster = MockCluster()
    cluster.create_topic("orders", 1)
    before = keys(root)
    for topic, code, told in (("orders", 1, "the cluster has it"), ("order", 0, "the cluster does not list it")):
        result = run(topic, "-a", str(root), "-b", cluster.bootstrap_servers, "--yes")
        assert (result.exit_code, told in result.stderr) == (code, True), result.output
    assert {key for key in before - keys(root) if not key.startswith("topic=order/")} == set()


def test_a_topic_of_layout_seed_is_not_dropped(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path, "seed").partition("orders", 0, record_format="text").commit(records(range(3)))
    refused = run("orders", "-a", str(tmp_path), "--yes")
    assert (refused.exit_code, "layout seed" in refused.stderr) == (2, True)
