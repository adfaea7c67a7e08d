"""Decoders of values whose schemas are in a registry, or given."""

import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from blockgz.errors import UsageError
from replayer.spark.decoding.avro import AvroDecoder, avro_decoder, latest_avro
from replayer.spark.decoding.protobuf import ProtobufDecoder, latest_protobuf
from replayer.spark.decoding.schema_registry import SchemaRegistry

T = TypeVar("T")


def avro_values(schema: str, registry: str | None) -> AvroDecoder:
    """Decodes to a given schema what schemas of the registry wrote, or without one the given schema."""
    try:
        found = json.loads(schema)
    except ValueError as error:
        raise UsageError("--schema is no Avro schema", why=str(error), remedy="give a file .avsc") from error
    return avro_decoder(found, None if registry is None else SchemaRegistry(registry).given)


def registered_values(kind: str, url: str, subjects: Sequence[str]) -> AvroDecoder | ProtobufDecoder:
    """Decodes to the newest schema of the subjects, which must be one.

    Raises UsageError, NotInArchive, AccessDenied or StoreUnavailable.
    """
    registry = SchemaRegistry(url)
    if kind == "avro":
        return avro_decoder(_one(subjects, lambda subject: latest_avro(registry, subject)), url)
    return ProtobufDecoder(_one(subjects, lambda subject: latest_protobuf(registry, subject)), url)


def _one(subjects: Sequence[str], latest: Callable[[str], T]) -> T:
    found = {subject: latest(subject) for subject in subjects}
    if not found:
        raise UsageError("no topic names a subject of the schema registry", remedy="name topics, or the subject")
    first = found[subjects[0]]
    others = [subject for subject, each in found.items() if each != first]
    if others:
        one, other = (subject.rpartition("-")[0] or subject for subject in (subjects[0], others[0]))
        raise UsageError(
            f"topics {one} and {other} have different schemas",
            why="a column has one type",
            remedy="take them one by one, or give a schema for all with --schema",
        )
    return first
