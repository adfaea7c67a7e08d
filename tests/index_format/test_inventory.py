import random
from functools import reduce

import pytest
from msgspec.structs import replace

from index_format import objects
from index_format.errors import MalformedObject
from index_format.keys import TopicFolder
from index_format.objects import Incarnation, Inventory, ended, parse_inventory, united, without


def seen(
    topic: str = "orders",
    *partitions: int,
    incarnation: int = 1,
    topic_id: str | None = None,
    at: int = 10,
    until: int | None = None,
) -> Incarnation:
    return Incarnation(topic, incarnation, topic_id, at, until, partitions)


def test_an_id_counts_more_than_null_and_the_earliest_and_latest_times_stay() -> None:
    before = united(Inventory(), [seen("orders", 0, 2, at=20, until=30)])
    after = united(before, [seen("orders", 1, topic_id="a", at=10, until=25)])
    assert after.incarnations == (seen("orders", 0, 1, 2, topic_id="a", at=10, until=30),)


def test_nothing_new_leaves_it_equal() -> None:
    inventory = united(Inventory(), [seen("orders", 0, 1, topic_id="a"), seen("orders", 0, incarnation=2)])
    assert united(inventory, [seen("orders", 1, at=11), seen("orders", 0, incarnation=2)]) == inventory


def test_the_order_of_claims_does_not_count(seed: int = 7) -> None:
    rng = random.Random(seed)
    claims = [
        seen(rng.choice("ab"), rng.randrange(9), incarnation=rng.randrange(1, 3), at=rng.randrange(99))
        for _ in range(60)
    ]
    whole = united(Inventory(), claims)
    for _ in range(20):
        rng.shuffle(claims)
        assert reduce(lambda inventory, claim: united(inventory, [claim]), claims, Inventory()) == whole


def test_a_topic_with_another_id_ends_the_incarnations_before() -> None:
    old, unknown, new = (
        seen("t", 0, topic_id="a"),
        seen("t", 0, incarnation=2),
        seen("t", 0, incarnation=3, topic_id="c"),
    )
    after = ended(Inventory(incarnations=(old, unknown, new)), TopicFolder("t", 3), "c", 50)
    assert [each.seen_until for each in after.incarnations] == [50, None, None]


def test_a_topic_that_is_gone_ends_what_this_writer_knew_of_it() -> None:
    early, late, other = seen("t", 0, at=10), seen("t", 0, incarnation=2, at=60), seen("u", 0)
    after = ended(Inventory(incarnations=(early, late, other)), TopicFolder("t"), None, 50)
    assert [each.seen_until for each in after.incarnations] == [50, None, None]


def test_a_mark_of_undoing_stays_and_is_left_out_where_there_is_none() -> None:
    copy = replace(seen("t", 0, topic_id="a"), undone=70)
    marked = united(Inventory(incarnations=(copy,)), [seen("t", 1, topic_id="a")])
    assert (marked.incarnations[0].undone, marked.incarnations[0].partitions) == (70, (0, 1))
    assert ended(marked, TopicFolder("t"), None, 80).incarnations[0].undone == 70
    assert parse_inventory(objects.encode(marked), "k") == marked
    assert b"undone" not in objects.encode(united(Inventory(), [seen("t", 0)]))


def test_partitions_are_taken_out_by_name_alone() -> None:
    inventory = united(Inventory(), [seen("t", 0, 1), seen("t", 0, incarnation=2)])
    assert without(inventory, TopicFolder("t"), [1]).incarnations == (seen("t", 0), seen("t", 0, incarnation=2))
    assert without(inventory, TopicFolder("t"), [0, 1]).incarnations == (seen("t", 0, incarnation=2),)
    assert without(inventory, TopicFolder("t", 2)).incarnations == (seen("t", 0, 1),)


@pytest.mark.parametrize(
    "incarnations",
    [
        b'[{"topic":"t","incarnation":1,"topic_id":null,"from":1,"until":null,"partitions":[1,0]}]',
        b'[{"topic":"t","incarnation":0,"topic_id":null,"from":1,"until":null,"partitions":[0]}]',
        b'[{"topic":"t/..","incarnation":1,"topic_id":null,"from":1,"until":null,"partitions":[0]}]',
        b'[{"topic":"t","incarnation":1,"topic_id":null,"from":1,"until":null,"partitions":[-1]}]',
        b'[{"topic":"t","incarnation":2,"topic_id":null,"from":1,"until":null,"partitions":[0]},'
        b'{"topic":"t","incarnation":1,"topic_id":null,"from":1,"until":null,"partitions":[0]}]',
    ],
)
def test_what_no_writer_wrote_is_refused(incarnations: bytes) -> None:
    head = b'{"format":"block-gzip-inventory","version":1,"rebuilt_at":null,"incarnations":'
    with pytest.raises(MalformedObject):
        parse_inventory(head + incarnations + b"}", "_inventory.json")


def test_a_flipped_bit_is_found() -> None:
    body = objects.encode(united(Inventory(), [seen("orders", 0)]))
    assert parse_inventory(body, "_inventory.json").incarnations == (seen("orders", 0),)
    with pytest.raises(MalformedObject):
        parse_inventory(body.replace(b'"from":10', b'"from":11'), "_inventory.json")
