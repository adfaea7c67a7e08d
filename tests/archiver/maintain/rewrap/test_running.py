"""Keys wrapped again beside a writer: the old master key is not needed any more, and no data is stored again."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from msgspec.structs import replace

from archiver.errors import ContentsDiffer
from archiver.maintain.gc import plan_sweep
from archiver.maintain.planned import RewriteResult
from archiver.maintain.repair.markers import plan_marker
from archiver.maintain.repair.plan import RepairTarget
from archiver.maintain.rewrap import PartitionRewrapping, PlannedRewrapping, check_rewrapped, rewrapped_contents
from archiver.maintain.rewrite.chunks import RewrappedChunk, RewriteKeys
from archiver.maintain.rewrite.intent import RewriteOutcome
from archiver.maintain.rewrite.replace import chunks_of
from blockgz.encryption.key_service import ServiceKey
from blockgz.encryption.keyring import Keyring, load_keyring
from blockgz.errors import KeyMissing
from index_format import objects
from index_format.keys import ENCRYPTED_SUFFIX, INDEX_SUFFIX
from index_format.objects import ChunkIndex
from tests.archiver.maintain.erase.world import EraseWorld, encrypted_world, keys_in, ranges
from tests.archiver.maintain.repair.world import MAX, Died
from tests.support.encryption import key_of
from tests.support.repairs import carry_out as carry_out_repair
from tests.support.s3_server import CREDENTIALS

GRACE = 3600.0
BOTH = Keyring([key_of(1), key_of(2)])


def planned(world: EraseWorld, keyring: Keyring = BOTH) -> PlannedRewrapping:
    return PlannedRewrapping(world.store, None, keyring, world.maintainer())


def rewrapped(world: EraseWorld, keyring: Keyring = BOTH) -> list[RewriteResult[PartitionRewrapping]]:
    command = planned(world, keyring)
    command.carry_out()
    return list(command.ended.values())


def key_ids(world: EraseWorld) -> set[str]:
    """Of all indexes that are stored, and of the marker."""
    found = [world.marker.tail_key.id] if world.marker.tail_key else []
    for key, body in world.store.bodies().items():
        if key.endswith(INDEX_SUFFIX) and not key.endswith("/last_chunk_index.json"):
            encryption = objects.decode(body, ChunkIndex, key).encryption
            found += [encryption.key.id] if encryption else []
    return set(found)


def data_in(world: EraseWorld) -> dict[str, bytes]:
    return {key: body for key, body in world.store.bodies().items() if key.endswith(ENCRYPTED_SUFFIX)}


def collect(world: EraseWorld) -> None:
    """Garbage collection until what was replaced is gone."""
    for _ in range(3):
        world.store.now += 2 * GRACE
        plan = plan_sweep(world.store, [], GRACE, wait=lambda attempt, cause: None)
        assert not plan.problems
        plan.carry_out()


def read_with(world: EraseWorld, keyring: Keyring) -> None:
    """Everything is there for who has these keys alone."""
    world.rewrite_keys = RewriteKeys(keyring)
    world.check()


@pytest.mark.parametrize("chunks", [3, 70])
def test_the_old_key_is_not_needed_once_the_old_indexes_are_gone(chunks: int, tmp_path: Path) -> None:
    world = encrypted_world(random.Random(chunks), chunks, keys_in(tmp_path, 1))
    world.erase(ranges(0), tmp_path)
    world.archive(random.Random(1), 2)
    data = data_in(world)
    (plan,) = planned(world).partitions
    assert (plan.encrypted, plan.old, plan.ids) == (world.marker.num_chunks, plan.encrypted, {key_of(1).id})
    assert [each.outcome for each in rewrapped(world)] == [RewriteOutcome.COMMITTED]
    assert data_in(world) == data
    read_with(world, Keyring([key_of(2)]))
    assert planned(world).partitions == []
    assert planned(world, Keyring([key_of(2)])).problems == []
    collect(world)
    assert key_ids(world) == {key_of(2).id}
    read_with(world, Keyring([key_of(2)]))
    world.identity = dataclasses.replace(world.identity, encrypt=keys_in(tmp_path, 2))
    world.archive(random.Random(2), 3)
    read_with(world, Keyring([key_of(2)]))
    world.erase(ranges(*sorted(world.held_offsets())[:3]), tmp_path)
    world.check()


def test_a_marker_that_is_lost_afterwards_is_rebuilt_without_the_old_key(tmp_path: Path) -> None:
    world = encrypted_world(random.Random(10), 5, keys_in(tmp_path, 1))
    rewrapped(world)
    collect(world)
    group, new = world.marker.group_id, keys_in(tmp_path, 2)
    world.store.delete(world.keys.marker)
    plan = plan_marker(RepairTarget(world.store, world.keys, MAX, new), group)
    assert not carry_out_repair(plan)
    assert key_ids(world) == {key_of(2).id}
    read_with(world, Keyring([key_of(2)]))


def test_who_has_the_newest_key_already_is_left_alone(tmp_path: Path) -> None:
    world = encrypted_world(random.Random(2), 70, keys_in(tmp_path, 1))
    before = world.store.bodies()
    plan = planned(world, Keyring([key_of(2), key_of(1)]))
    assert (plan.partitions, plan.untouched, plan.problems) == ([], 1, [])
    assert world.store.bodies() == before


def test_without_the_old_key_nothing_is_changed(tmp_path: Path) -> None:
    world = encrypted_world(random.Random(3), 70, keys_in(tmp_path, 1))
    before = world.store.bodies()
    plan = planned(world, Keyring([key_of(2)]))
    (problem,) = plan.problems
    assert isinstance(problem.error, KeyMissing) and key_of(1).id in problem.error.why
    assert (plan.partitions, world.store.bodies()) == ([], before)


@pytest.mark.slow
@pytest.mark.parametrize("half", [0.0, 0.5])
def test_a_run_that_dies_at_any_request_can_be_repeated(half: float, tmp_path: Path) -> None:
    start = encrypted_world(random.Random(4), 4, keys_in(tmp_path, 1))
    start.erase(ranges(0), tmp_path)
    start.archive(random.Random(5), 2)
    for died in range(1, 200, 3):
        world = start.copy()
        world.store.dies_at = died + half
        try:
            rewrapped(world)
        except Died:
            pass
        else:
            break
        world.store.dies_at = None
        read_with(world, BOTH)
        assert all(each.outcome is RewriteOutcome.COMMITTED for each in rewrapped(world))
        read_with(world, Keyring([key_of(2)]))
    else:
        raise AssertionError("it never came to its end")
    assert died > 15


def test_an_index_that_leads_to_another_key_is_caught(tmp_path: Path) -> None:
    world = encrypted_world(random.Random(6), 2, keys_in(tmp_path, 1))
    old = world.run(chunks_of(world.keys, world.marker.tail))
    new: list[Any] = list(rewrapped_contents(BOTH, old))
    for before, after in zip(old, new, strict=True):
        check_rewrapped(BOTH, [before], after)
    swapped = replace(new[0].index, encryption=new[1].index.encryption)
    longer = replace(new[0].index, next_offset=new[0].index.next_offset + 1)
    for index in (swapped, longer):
        with pytest.raises(ContentsDiffer):
            check_rewrapped(BOTH, old[:1], RewrappedChunk(old[0].entry, index))


@pytest.mark.slow
def test_keys_move_to_aws_kms_and_from_one_key_there_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    world = encrypted_world(random.Random(7), 5, keys_in(tmp_path, 1))
    with mock_aws():
        client = boto3.client("kms", region_name="eu-central-1")
        first, second = (client.create_key()["KeyMetadata"]["Arn"] for _ in range(2))
        service = [ServiceKey(arn, lambda: client) for arn in (first, second)]
        assert [each.outcome for each in rewrapped(world, Keyring([key_of(1), service[0]]))] == [
            RewriteOutcome.COMMITTED
        ]
        collect(world)
        assert key_ids(world) == {first}
        assert [each.outcome for each in rewrapped(world, Keyring(service))] == [RewriteOutcome.COMMITTED]
        collect(world)
        assert key_ids(world) == {second}
        read_with(world, Keyring([ServiceKey(second, lambda: client)]))


def test_a_writer_that_was_at_work_goes_on_with_the_newest_key(tmp_path: Path) -> None:
    world = encrypted_world(random.Random(8), 5, keys_in(tmp_path, 1))
    world.identity = dataclasses.replace(world.identity, encrypt=keys_in(tmp_path, 1, 2))
    rewrapped(world)
    world.archive(random.Random(9), 3)
    world.rewrite_keys = RewriteKeys(load_keyring(keys_in(tmp_path, 2)))
    world.check()
    assert world.marker.tail_key and world.marker.tail_key.id == key_of(2).id
