"""A schema registry's topic, archived and replayed, gives a registry on another cluster that answers the same."""

import io
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fastavro
import pytest

from system_test.support.archiving import Site, folder_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.schema_registries import Registry, apicurio, apicurio_program, karapace, karapace_program
from system_test.support.topics import NewRecord, Record, fill_topic, own_config, partition_count, read
from tests.support.sampling import LONG
from tests.support.schema_registry import avro_value

pytestmark = [
    pytest.mark.skipif(not LONG, reason="a minute: make registry runs it"),
    pytest.mark.timeout(600, func_only=True),
]

GZIP = ("-X", "compression.type=gzip")
"""kafka-python reads no lz4 here."""
ORDER = {"id": "7", "customer": {"name": "Ann"}}


@dataclass(frozen=True)
class Kind:
    """A registry program, its topic with the policy that it needs, and whether Avro schemas may refer to others."""

    program: Callable[[], object]
    start: Callable[[str, Path], AbstractContextManager[Registry]]
    topic: str
    cleanup: str
    refers: bool


KINDS = {
    "apicurio": Kind(apicurio_program, apicurio, "kafkasql-journal", "delete", refers=True),
    "karapace": Kind(karapace_program, karapace, "_schemas", "compact", refers=False),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found = KINDS[request.param]
    found.program()
    return found


def test_a_restored_registry_answers_the_same_and_continues(kind: Kind, tmp_path: Path) -> None:
    with ExitStack() as running:
        old, new = (running.enter_context(KafkaBroker()) for _ in range(2))
        first = running.enter_context(kind.start(old.bootstrap, tmp_path / "old"))
        ids = filled(first, refers=kind.refers)
        fill_topic(old.bootstrap, "orders", [NewRecord(encoded(ids["orders"]), key=b"7")])
        said = answers(first, max(ids.values()))
        site = folder_site(old.bootstrap, tmp_path / "archive")
        # A pattern means names that begin with one underscore, too.
        site.once("*")
        restore(site, new, kind.topic)
        assert content(new.bootstrap, kind.topic) == content(old.bootstrap, kind.topic)
        assert partition_count(new.bootstrap, kind.topic) == 1
        assert own_config(new.bootstrap, kind.topic)["cleanup.policy"] == kind.cleanup
        second = running.enter_context(kind.start(new.bootstrap, tmp_path / "new"))
        assert answers(second, max(ids.values())) == said
        (copied,) = read(new.bootstrap, "orders")
        assert decoded(second, copied.value or b"") == ORDER
        check_what_is_registered_next(second, ids)


def restore(site: Site, cluster: KafkaBroker, topic: str) -> None:
    """The schemas first, without a transaction's marker at their end, then the records that refer to them."""
    target = ("--at", "-0s", "--yes", "-b", cluster.bootstrap, *GZIP)
    site.replayer("restore", topic, "--name", "schemas", "--no-transactional", *target)
    site.replayer("restore", "orders", "--name", "records", *target)
    again = site.replayer("restore", topic, "--name", "again", *target, check=2)
    assert "exists" in again.stderr


def content(bootstrap: str, topic: str) -> list[Record]:
    """Keys, values, headers and timestamps in their order."""
    return [replace(each, offset=0) for each in read(bootstrap, topic)]


def avro(name: str, *fields: str, **named: object) -> dict[str, Any]:
    """A schema of strings with default values, and of fields with types of their own."""
    strings = [{"name": each, "type": "string", "default": ""} for each in fields]
    return {"type": "record", "name": name, "fields": [*strings, *({"name": n, "type": t} for n, t in named.items())]}


def filled(registry: Registry, *, refers: bool) -> dict[str, int]:
    """Subjects with versions, deleted ones, compatibilities set and removed; the ids by name."""
    customer = avro("Customer", "name")
    reference = {"references": [{"name": "Customer", "subject": "customer", "version": 1}]} if refers else {}
    of_order = "Customer" if refers else customer
    registry.change("PUT", "/config", compatibility="FULL")
    ids = {"customer": registry.register("customer", customer)}
    for number, fields in enumerate((["id"], ["id", "note"])):
        order = avro("Order", *fields, customer=of_order)
        ids["orders" + number * "-2"] = registry.register("orders-value", order, **reference)
    objects = {"type": "object", "properties": {"city": {"type": "string"}}}
    ids["events"] = registry.register("events-value", objects, schemaType="JSON")
    for name in ("hidden", "gone", "free", "plain"):
        ids[name] = registry.register(f"{name}-value", avro(name.title(), "x"))
    for path in ("hidden-value", "gone-value", "gone-value?permanent=true"):
        registry.change("DELETE", f"/subjects/{path}")
    for subject, level in (("orders-value", "BACKWARD"), ("free-value", "FORWARD"), ("plain-value", "FORWARD")):
        registry.change("PUT", f"/config/{subject}", compatibility=level)
    registry.change("DELETE", "/config/plain-value")
    return ids


def answers(registry: Registry, last_id: int) -> dict[str, tuple[int, Any]]:
    """All that a registry says about its schemas, by path."""
    paths = ["/config", "/subjects", "/subjects?deleted=true"]
    for number in range(1, last_id + 2):
        paths += [f"/schemas/ids/{number}", f"/schemas/ids/{number}/versions"]
    for name in ("customer", "orders-value", "events-value", "hidden-value", "gone-value", "free-value", "plain-value"):
        paths += [f"/config/{name}", f"/subjects/{name}/versions", f"/subjects/{name}/versions?deleted=true"]
        paths += [f"/subjects/{name}/versions/{version}?deleted=true" for version in (1, 2, 3, "latest")]
    return {path: registry.ask(path) for path in paths}


def check_what_is_registered_next(registry: Registry, ids: dict[str, int]) -> None:
    """A known schema keeps its id, an incompatible one is refused, new ones get ids above all others."""
    versions = "/subjects/customer/versions"
    assert registry.register("customer", avro("Customer", "name")) == ids["customer"]
    incompatible = {"schema": json.dumps(avro("Customer", age="int"))}
    assert registry.ask(versions, "POST", incompatible)[0] == 409
    assert registry.ask(versions) == (200, [1])
    added = registry.register("new-value", avro("New", "x"))
    assert added > max(ids.values())
    assert registry.register("free-value", avro("Free", "x", other="int")) > added


def encoded(number: int) -> bytes:
    """ORDER as the serializers of registries write it."""
    return avro_value(number, avro("Order", "id", customer=avro("Customer", "name")), ORDER)


def decoded(registry: Registry, value: bytes) -> Any:
    """A value by what the registry says about its id."""
    _, answer = registry.ask(f"/schemas/ids/{int.from_bytes(value[1:5])}")
    names: dict[str, Any] = {}
    for each in answer.get("references") or ():
        _, referred = registry.ask(f"/subjects/{each['subject']}/versions/{each['version']}")
        fastavro.parse_schema(json.loads(referred["schema"]), named_schemas=names)
    schema = fastavro.parse_schema(json.loads(answer["schema"]), named_schemas=names)
    return fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)
