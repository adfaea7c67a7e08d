import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from archiver.cli import main
from archiver.maintain.repair.inventory import plan_inventory
from archiver.maintain.repair.plan import carry_out
from blockgz.store.local import LocalStore
from index_format.identity import parse_inventory
from index_format.keys import inventory_key
from replayer.cli import main as replayer
from tests.support.archives import ArchiveWriter, records


def run(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def verified(root: Path, *args: str) -> dict[str, Any]:
    result = CliRunner().invoke(replayer, ["verify", *args, "--json", "-a", str(root)])
    report: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (3 if report["verdict"] == "FAILURE" else 0)
    return report


def listed(root: Path, layout: str = "topic") -> dict[str, tuple[int, ...]]:
    inventory = parse_inventory((root / inventory_key(layout)).read_bytes(), "it")
    return {str(each.folder): each.partitions for each in inventory.incarnations}


def archive(root: Path, layout: str = "topic", *, has_inventory: bool = True) -> ArchiveWriter:
    writer = ArchiveWriter(root, layout, has_inventory=has_inventory)
    places = [("orders", 1, 0), ("orders", 1, 1), ("users", 1, 4)]
    for topic, incarnation, number in [*places, ("orders", 2, 0)] if layout == "topic" else places:
        writer.partition(topic, number, incarnation=incarnation).commit(records(range(5)))
    return writer


@pytest.mark.parametrize("layout", ["topic", "seed"])
def test_an_older_archive_gets_one_of_what_is_there(tmp_path: Path, layout: str) -> None:
    archive(tmp_path, layout, has_inventory=False)
    report = verified(tmp_path)
    assert report["verdict"] == "WARNING" and "archiver repair inventory" in report["warnings"][0]
    assert run("repair", "inventory", "-a", str(tmp_path), "--dry-run").exit_code == 0
    assert not (tmp_path / inventory_key(layout)).exists()
    assert run("repair", "inventory", "-a", str(tmp_path), "--yes").exit_code == 0
    second = {"orders~2": (0,)} if layout == "topic" else {}
    assert listed(tmp_path, layout) == {"orders": (0, 1), "users": (4,)} | second
    report = verified(tmp_path)
    assert report["verdict"] == "OK" and report["inventory_rebuilt_ms"] is not None
    assert "nothing to store" in run("repair", "inventory", "-a", str(tmp_path)).stdout


def test_a_damaged_one_is_rebuilt(tmp_path: Path) -> None:
    archive(tmp_path)
    (tmp_path / "_inventory.json").write_bytes(b"{}")
    assert verified(tmp_path)["verdict"] == "FAILURE"
    assert run("repair", "inventory", "-a", str(tmp_path), "--yes").exit_code == 0
    assert listed(tmp_path) == {"orders": (0, 1), "orders~2": (0,), "users": (4,)}


def test_what_is_lost_is_not_taken_out_by_a_repair(tmp_path: Path) -> None:
    writer = archive(tmp_path)
    shutil.rmtree(tmp_path / "topic=orders" / "partition=00001")
    writer.has_inventory = False
    writer.partition("users", 5)
    assert run("repair", "inventory", "-a", str(tmp_path), "--yes").exit_code == 0
    assert listed(tmp_path) == {"orders": (0, 1), "orders~2": (0,), "users": (4, 5)}
    assert parse_inventory((tmp_path / "_inventory.json").read_bytes(), "it").rebuilt_at is None


def test_a_partition_that_is_claimed_meanwhile_is_listed(tmp_path: Path) -> None:
    """Its writer found no inventory before the first listing was stored."""
    writer = archive(tmp_path, has_inventory=False)

    class Store(LocalStore):
        def compare_and_swap(self, key: str, body: bytes, expected: Any) -> Any:
            if not (tmp_path / "topic=late").exists():
                writer.partition("late", 0)
            return super().compare_and_swap(key, body, expected)

    plan = plan_inventory(Store(tmp_path), "topic", lambda *_: None)
    assert not carry_out(plan) and listed(tmp_path)["late"] == (0,)


def test_only_what_is_gone_is_forgotten(tmp_path: Path) -> None:
    archive(tmp_path)
    refused = run("forget", "orders", "-a", str(tmp_path), "--yes")
    assert refused.exit_code != 0 and "nothing of orders is missing" in refused.output
    for unknown in ("nowhere", "orders:77", "orders~9"):
        refused = run("forget", unknown, "-a", str(tmp_path), "--yes")
        assert refused.exit_code == 4 and f"{unknown} is not in the inventory" in refused.output
    shutil.rmtree(tmp_path / "topic=orders" / "partition=00001")
    shutil.rmtree(tmp_path / "topic=orders~2")
    shutil.rmtree(tmp_path / "topic=users")
    report = verified(tmp_path)
    assert report["verdict"] == "FAILURE" and report["missing"] == [
        {"topic": "orders", "incarnation": 1, "partition": 1},
        {"topic": "orders", "incarnation": 2, "partition": 0},
        {"topic": "users", "incarnation": 1, "partition": 4},
    ]
    assert run("forget", "orders~1:1", "-a", str(tmp_path), "--dry-run").exit_code == 0
    assert listed(tmp_path)["orders"] == (0, 1)
    assert run("forget", "orders~1:1", "-a", str(tmp_path), "--yes").exit_code == 0
    assert listed(tmp_path) == {"orders": (0,), "orders~2": (0,), "users": (4,)}
    assert run("forget", "orders", "users:4", "-a", str(tmp_path), "--yes").exit_code == 0
    assert listed(tmp_path) == {"orders": (0,)} and verified(tmp_path)["verdict"] == "OK"


def test_an_archive_whose_topics_are_gone_is_not_ok(tmp_path: Path) -> None:
    archive(tmp_path)
    for folder in tmp_path.glob("topic=*"):
        shutil.rmtree(folder)
    report = verified(tmp_path)
    assert report["verdict"] == "FAILURE" and len(report["missing"]) == 4
    report = verified(tmp_path, "users")
    assert [each["topic"] for each in report["missing"]] == ["users"]
    text = CliRunner().invoke(replayer, ["verify", "-a", str(tmp_path)]).stdout
    assert "FAILURE orders~2:0 is missing" in text


def test_an_archive_of_nothing_is_a_warning_unless_a_topic_is_expected(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path)
    assert verified(tmp_path)["verdict"] == "WARNING"
    report = verified(tmp_path, "--expect", "orders")
    assert report["verdict"] == "FAILURE" and report["unmet"] == ["orders"]


def test_an_expected_topic_that_is_there(tmp_path: Path) -> None:
    archive(tmp_path)
    assert verified(tmp_path, "--expect", "orders", "--expect", "orders~2")["verdict"] == "OK"
    assert verified(tmp_path, "users", "--expect", "order")["unmet"] == ["order"]
    (tmp_path / "_inventory.json").unlink()
    assert verified(tmp_path)["verdict"] == "FAILURE"


def test_a_named_partition_that_is_lost_is_a_failure(tmp_path: Path) -> None:
    archive(tmp_path)
    shutil.rmtree(tmp_path / "topic=users" / "partition=00004")
    report = verified(tmp_path, "users:4")
    assert report["verdict"] == "FAILURE" and report["missing"][0]["partition"] == 4
