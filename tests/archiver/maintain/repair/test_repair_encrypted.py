"""Repairs of encrypted partitions: what needs the keys, and what is lost with an index."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from archiver.maintain.garbage import SHORTEST_GRACE_SECONDS
from archiver.maintain.gc import plan_sweep
from archiver.maintain.repair.chunk_indexes import plan_indexes
from archiver.maintain.repair.diverged import LogSource, plan_diverged
from archiver.maintain.repair.markers import plan_marker
from archiver.maintain.repair.plan import RepairPlan, RepairTarget, carry_out
from archiver.maintain.repair.salvage import plan_salvage
from blockgz.archive.archive import Archive
from blockgz.archive.selection import scan
from blockgz.encryption.keyring import Sealing, load_keyring
from blockgz.errors import exit_code
from index_format.errors import KeyMissing
from index_format.keys import ENCRYPTED_SUFFIX
from replayer.verify.report import Depth
from replayer.verify.verifying import verify_partition
from tests.archiver.maintain.repair.test_diverged import Cluster, rewritten
from tests.archiver.maintain.repair.world import MAX, World
from tests.support.archives import ARCHIVE_ID
from tests.support.chunks import identity_of
from tests.support.encryption import key_line, sealed_chunk
from tests.support.memory_reader import MemoryReader


class Encrypting(World):
    """Chunks are encrypted."""

    def chunk(self, rows: Any, start: int | None = None, end: int | None = None) -> Any:
        plain = super().chunk(rows, start, end)
        sealing = self.identity.sealing
        assert sealing is not None
        return sealed_chunk(plain, self.log.record_at(plain.blocks[-1].last_record_offset), sealing)


class Vault(Encrypting):
    """A partition whose chunks are encrypted."""


class Truncated(Encrypting, Cluster):
    """The same, and its log was truncated and written again."""

    def plan(self) -> RepairPlan:
        source = LogSource(lambda topic, partition, level: self.log, lambda topic: self.topic_id)
        return plan_diverged(self.store, RepairTarget(self.keys), source, MAX, wait, self.identity.encrypt)


def wait(attempt: int, cause: Any) -> None:
    raise AssertionError(cause)


@pytest.fixture
def keys(tmp_path: Path) -> str:
    file = tmp_path / "keys"
    file.write_text(key_line(1))
    file.chmod(0o600)
    return f"file:{file}"


@pytest.fixture
def vault(keys: str) -> Vault:
    load_keyring.cache_clear()
    return Vault(dataclasses.replace(identity_of("topic", archive_id=ARCHIVE_ID), encrypt=keys))


def read(vault: Vault, keys: str) -> list[int]:
    """The offsets of all records, found by readers, who find nothing wrong."""

    async def found() -> list[int]:
        archive = Archive(MemoryReader(vault.store.bodies()), keyring=load_keyring(keys))
        report = await verify_partition(archive, "orders", 3, Depth.RECORDS, lambda *_: None)
        assert not report.damage and not report.lost, (report.damage, report.lost)
        partition = await archive.open_partition("orders", 3)
        return [offset async for batch in scan(partition, 0, 2**62) for offset in batch.column("offset").to_pylist()]

    return asyncio.run(found())


def test_a_marker_is_made_again_with_the_keys_and_not_without(vault: Vault, keys: str) -> None:
    vault.commit(range(10))
    vault.commit(range(10, 20))
    before = vault.marker
    vault.store.delete(vault.keys.marker)
    refused = plan_marker(vault.store, RepairTarget(vault.keys), vault.identity.group_id, MAX, wait)
    (problem,) = refused.problems
    assert isinstance(problem.error, KeyMissing) and exit_code(problem.error) == 12
    plan = plan_marker(vault.store, RepairTarget(vault.keys), vault.identity.group_id, MAX, wait, keys)
    assert not carry_out(plan)
    assert (vault.marker.tail_hash, vault.marker.tail, vault.marker.version) == (before.tail_hash, before.tail, 2)
    vault.held = None
    vault.commit(range(20, 30))
    assert read(vault, keys) == list(range(30))


def test_a_lost_index_is_lost_with_its_key(vault: Vault) -> None:
    vault.commit(range(10))
    (index,) = (key for key in vault.store.bodies() if key.endswith("0.index.json"))
    vault.store.delete(index)
    for found in (True, False):
        if not found:
            vault.store.delete(vault.keys.marker)
        (problem,) = plan_indexes(vault.store, RepairTarget(vault.keys), MAX).problems
        assert isinstance(problem.error, KeyMissing)
        assert "only its index had its key" in problem.error.why


@pytest.mark.parametrize("low", [10, 13])
def test_an_orphan_fills_a_gap_with_the_keys(vault: Vault, keys: str, low: int) -> None:
    vault.commit(range(10))
    vault.die_committing(range(10, 30))
    vault.held = None
    vault.log.low = 40 if low == 10 else 25
    vault.claim()
    vault.commit(range(vault.log.low, 50))
    refused = plan_salvage(vault.store, RepairTarget(vault.keys), MAX, wait)
    assert not refused.steps and any(isinstance(each.error, KeyMissing) for each in refused.problems)
    plan = plan_salvage(vault.store, RepairTarget(vault.keys), MAX, wait, keys)
    assert len(plan.steps) == 1 and not carry_out(plan)
    expected = [*range(30), *range(40, 50)] if low == 10 else range(50)
    assert read(vault, keys) == list(expected)
    data = [key for key in vault.store.bodies() if ".gz" in key]
    assert len(data) == 4 and all(key.endswith(ENCRYPTED_SUFFIX) for key in data)


def test_a_writer_without_keys_claims_nothing(vault: Vault, keys: str) -> None:
    vault.commit(range(10))
    before = vault.store.bodies()[vault.keys.marker]
    vault.identity = dataclasses.replace(vault.identity, encrypt=None)
    with pytest.raises(KeyMissing, match="orders:3 is encrypted"):
        vault.claim()
    assert vault.store.bodies()[vault.keys.marker] == before
    assert isinstance(dataclasses.replace(vault.identity, encrypt=keys).sealing, Sealing)


def test_garbage_is_told_from_what_is_committed(vault: Vault, keys: str) -> None:
    vault.commit(range(10))
    vault.die_committing(range(10, 20))
    vault.held = None
    vault.commit(range(10, 30))
    before = set(vault.store.bodies())
    vault.store.now += 10 * SHORTEST_GRACE_SECONDS
    plan = plan_sweep(vault.store, (), SHORTEST_GRACE_SECONDS)
    assert not plan.problems
    plan.carry_out()
    gone = before - set(vault.store.bodies())
    assert sorted(key.rpartition("/")[2] for key in gone) == [
        "00000000000000000010.gz.enc",
        "00000000000000000010.index.json",
    ]
    assert read(vault, keys) == list(range(30))


@pytest.mark.parametrize(("low", "start", "copied"), [(0, 25, 0), (30, 35, 1)])
def test_a_truncated_log_goes_on_with_the_keys(keys: str, low: int, start: int, copied: int) -> None:
    load_keyring.cache_clear()
    cluster = Truncated(dataclasses.replace(identity_of("topic", archive_id=ARCHIVE_ID), encrypt=keys))
    cluster.commit(range(20))
    cluster.commit(range(20, 40))
    cluster.log = rewritten(start, 60, low=low)
    with_keys, cluster.identity = cluster.identity, dataclasses.replace(cluster.identity, encrypt=None)
    (problem,) = cluster.plan().problems
    assert isinstance(problem.error, KeyMissing)
    cluster.identity = with_keys
    continues = cluster.repaired()
    assert len(cluster.marker_at(cluster.last()).tail) == copied
    cluster.go_on(range(continues.offset if not copied else 30, 60))
    newer = {key for key in cluster.store.bodies() if "orders~2" in key and ".gz" in key}
    assert len(newer) == 1 + copied and all(key.endswith(ENCRYPTED_SUFFIX) for key in newer)

    async def found() -> list[int]:
        archive = Archive(MemoryReader(cluster.store.bodies()), keyring=load_keyring(keys))
        report = await verify_partition(archive, "orders", 3, Depth.RECORDS, lambda *_: None)
        assert not report.damage and not report.lost, (report.damage, report.lost)
        partition = await archive.open_partition("orders", 3)
        return [offset async for batch in scan(partition, 0, 2**62) for offset in batch.column("offset").to_pylist()]

    assert asyncio.run(found()) == list(range(60))
