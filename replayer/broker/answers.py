"""The answer to each kind of request; only fetches wait."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from blockgz.archive.lookup import offset_at
from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.positions import AtTime
from blockgz.errors import BlockgzError, NotInArchive
from index_format.marker import CatalogReference
from replayer.broker import messages
from replayer.broker.fetch import (
    KAFKA_STORAGE_ERROR,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    FetchState,
    PartitionFetch,
    error_code,
    fetched,
    log,
)
from replayer.broker.messages import APIS, Request
from replayer.broker.partition_logs import Log, Logs

GROUP_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED = 30, 31
UNSUPPORTED_VERSION, POLICY_VIOLATION = 35, 44
READ_ONLY = "this is an archive of blockgz, and can only be read"
_NO_GROUPS = "this broker serves an archive and has no consumer groups: assign partitions and offsets in the client"
_TOPIC_RESOURCE = 2
_TOPIC_SETTING, _TEXT_TYPE = 1, 2
_LATEST, _EARLIEST, _NEWEST_TIME, _EARLIEST_LOCAL = -1, -2, -3, -4
_NO_OPERATIONS = -(2**31)
_NODE = 0
_TIMES_AT_ONCE = 16


@dataclass
class Client:
    """A client, as its connection remembers it."""

    address: tuple[str, int]
    """The address that this client is given."""
    may_read: Callable[[str], bool] = lambda _: True
    """Decides by the name of a topic."""
    name: str = ""
    next_offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    """For each partition, the start of its next fetch if the client reads sequentially."""
    began_at_end: set[tuple[str, int]] = field(default_factory=set)
    """Partitions of whose end it asked."""


class Answers:
    """Answers the requests of all clients."""

    def __init__(self, logs: Logs, reading: FetchState) -> None:
        self._logs = logs
        self.reading = reading
        self._times = asyncio.Semaphore(_TIMES_AT_ONCE)
        self._handlers: Mapping[messages.Api, Callable[[Client, dict[str, Any]], Awaitable[Any]]] = {
            messages.PRODUCE: self._produce,
            messages.LIST_OFFSETS: self._list_offsets,
            messages.METADATA: self._metadata,
            messages.FIND_COORDINATOR: self._find_coordinator,
            messages.VERSIONS: self._versions,
            messages.CREATE_TOPICS: self._refused("topics", "topics"),
            messages.DELETE_TOPICS: self._delete_topics,
            messages.DELETE_RECORDS: self._delete_records,
            messages.INIT_PRODUCER_ID: self._init_producer_id,
            messages.LEADER_EPOCH: self._leader_epoch,
            messages.DESCRIBE_CONFIGS: self._describe_configs,
            messages.CREATE_PARTITIONS: self._refused("topics", "results"),
            messages.ALTER_CONFIGS: self._refused("resources", "responses"),
            messages.DESCRIBE_CLUSTER: self._describe_cluster,
        }

    async def answer(self, client: Client, request: Request) -> dict[str, Any] | None:
        """Return the response's values; None if the client expects none. Fetches are answered by `fetch`."""
        if request.api is messages.METADATA and request.version == 0 and not request.values["topics"]:
            request.values["topics"] = None  # later versions have null for all topics
        if request.api is messages.VERSIONS and not request.values:
            return {**(await self._versions(client, {})), "error_code": UNSUPPORTED_VERSION}
        found: dict[str, Any] | None = await self._handlers[request.api](client, request.values)
        return found

    async def fetch(self, client: Client, values: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """Return the response's values, and the bytes that are to be given back when it is sent."""
        parts, ahead = [], []
        for topic in values["topics"] or ():
            name = topic["topic"]
            may_read = client.may_read(name)
            for asked in topic["partitions"] or ():
                place = await self._logs.log(name, asked["partition"]) if may_read else None
                offset = asked["fetch_offset"]
                part = PartitionFetch(name, asked["partition"], offset, asked["partition_max_bytes"], place)
                if not may_read:
                    part.error = TOPIC_AUTHORIZATION_FAILED
                parts.append(part)
                reads_on = client.next_offsets.get((name, asked["partition"])) == offset
                ahead.append(self.reading.blocks.ahead_bytes if reads_on else 0)
        room = await fetched(parts, values, self.reading, ahead)
        self._remember(client, parts)
        topics: dict[str, list[dict[str, Any]]] = {}
        for part in parts:
            topics.setdefault(part.topic, []).append(_fetched_document(part))
        responses = [{"topic": name, "partitions": partitions} for name, partitions in topics.items()]
        return {"responses": responses}, room.allowed

    def _remember(self, client: Client, parts: list[PartitionFetch]) -> None:
        blocks = self.reading.blocks
        blocks.readers -= len(client.next_offsets)
        client.next_offsets = {(part.topic, part.number): part.position for part in parts}
        blocks.readers += len(client.next_offsets)
        for part in parts:
            place = part.topic, part.number
            if place in client.began_at_end:
                client.began_at_end.discard(place)
                if part.offset == part.end and not part.error:
                    self.reading.counts["began at the end"] += 1
                    log.warning(
                        "client %s begins at the end of %s:%d, and gets only what is archived from now on; to read "
                        "the archive, set auto.offset.reset=earliest or begin at offset %d",
                        client.name, *place, part.start,
                    )  # fmt: skip

    def forget(self, client: Client) -> None:
        """Count a client no longer that went away."""
        self.reading.blocks.readers -= len(client.next_offsets)
        client.next_offsets = {}

    async def _metadata(self, client: Client, values: dict[str, Any]) -> dict[str, Any]:
        served = await self._logs.names()
        if values["topics"] is None:
            names = [name for name in served if client.may_read(name)]
        else:
            names = [each["name"] or "" for each in values["topics"]]

        async def one(name: str) -> dict[str, Any]:
            found: dict[str, Any] = {"name": name, "partitions": [], "topic_authorized_operations": _NO_OPERATIONS}
            if not client.may_read(name):
                return found | {"error_code": TOPIC_AUTHORIZATION_FAILED}
            numbers = await self._logs.partitions(name)
            if numbers is None:
                return found | {"error_code": UNKNOWN_TOPIC_OR_PARTITION}
            return found | {"partitions": list(map(_partition_document, numbers))}

        topics = await asyncio.gather(*map(one, names))
        host, port = client.address
        return {
            "brokers": [{"node_id": _NODE, "host": host, "port": port}],
            "cluster_id": self._cluster_id,
            "controller_id": _NODE,
            "topics": topics,
            "cluster_authorized_operations": _NO_OPERATIONS,
        }

    @property
    def _cluster_id(self) -> str:
        return f"archive-{self._logs.archive_id}"

    async def _describe_cluster(self, client: Client, values: dict[str, Any]) -> dict[str, Any]:
        await self._logs.names()
        host, port = client.address
        return {
            "endpoint_type": values.get("endpoint_type", 1),
            "cluster_id": self._cluster_id,
            "controller_id": _NODE,
            "brokers": [{"broker_id": _NODE, "host": host, "port": port}],
            "cluster_authorized_operations": _NO_OPERATIONS,
        }

    async def _list_offsets(self, client: Client, values: dict[str, Any]) -> dict[str, Any]:
        async def one(topic: str, number: int, timestamp: int) -> dict[str, Any]:
            answer = {"partition_index": number, "timestamp": -1, "offset": -1, "leader_epoch": -1}
            if not client.may_read(topic):
                return answer | {"error_code": TOPIC_AUTHORIZATION_FAILED}
            place = await self._logs.log(topic, number)
            if place is None:
                return answer | {"error_code": UNKNOWN_TOPIC_OR_PARTITION}
            if timestamp == _LATEST:
                client.began_at_end.add((topic, number))
            try:
                async with self._times:
                    offset, time = await _offset_at(place, timestamp)
            except BlockgzError as error:
                self.reading.announce("error", place, -1, str(error))
                return answer | {"error_code": error_code(error)}
            return answer | {"offset": offset, "timestamp": time}

        topics = []
        for topic in values["topics"] or ():
            asked = [(topic["name"], each["partition_index"], each["timestamp"]) for each in topic["partitions"] or ()]
            found = await asyncio.gather(*(one(*each) for each in asked))
            topics.append({"name": topic["name"], "partitions": found})
        return {"topics": topics}

    async def _leader_epoch(self, client: Client, values: dict[str, Any]) -> dict[str, Any]:
        topics = []
        for topic in values["topics"] or ():
            found = []
            for asked in topic["partitions"] or ():
                number, end, code = asked["partition"], -1, UNKNOWN_TOPIC_OR_PARTITION
                place = await self._logs.log(topic["topic"], number) if client.may_read(topic["topic"]) else None
                if place is not None:
                    try:
                        end, code = (await place.partition()).next_offset, 0
                    except BlockgzError as error:
                        code = error_code(error)
                found.append({"error_code": code, "partition": number, "leader_epoch": -1, "end_offset": end})
            topics.append({"topic": topic["topic"], "partitions": found})
        return {"topics": topics}

    async def _describe_configs(self, client: Client, values: dict[str, Any]) -> dict[str, Any]:
        results = []
        for asked in values["resources"] or ():
            kind, name = asked["resource_type"], asked["resource_name"]
            result: dict[str, Any] = {"resource_type": kind, "resource_name": name, "configs": []}
            results.append(result)
            if kind != _TOPIC_RESOURCE:
                continue
            named = (await self._logs.names()).get(name) if client.may_read(name) else None
            try:
                config = await self._logs.archive.topic_config(named) if named else None
            except NotInArchive:
                named = None
            except BlockgzError:
                result["error_code"] = KAFKA_STORAGE_ERROR
                continue
            if named is None:
                result["error_code"] = UNKNOWN_TOPIC_OR_PARTITION
                continue
            wanted = asked["configuration_keys"]
            settings = (config and config.config) or {}
            result["configs"] = [
                {
                    "name": setting,
                    "value": value,
                    "read_only": True,
                    "config_source": _TOPIC_SETTING,
                    "config_type": _TEXT_TYPE,
                    "synonyms": [],
                }
                for setting, value in settings.items()
                if wanted is None or setting in wanted
            ]
        return {"results": results}

    async def _versions(self, _client: Client, _values: dict[str, Any]) -> dict[str, Any]:
        known = [{"api_key": api.key, "min_version": api.first, "max_version": api.last} for api in APIS.values()]
        return {"api_keys": known}

    async def _find_coordinator(self, client: Client, values: dict[str, Any]) -> dict[str, Any]:
        log.warning("client %s asks for a consumer group: %s", client.name, _NO_GROUPS)
        refused: dict[str, Any] = {"error_code": GROUP_AUTHORIZATION_FAILED, "error_message": _NO_GROUPS}
        refused |= {"node_id": -1, "host": "", "port": -1}
        return refused | {"coordinators": [refused | {"key": key} for key in values.get("coordinator_keys") or ()]}

    async def _produce(self, client: Client, values: dict[str, Any]) -> dict[str, Any] | None:
        log.warning("client %s tries to produce: %s", client.name, READ_ONLY)
        if values["acks"] == 0:
            return None
        refused: dict[str, Any] = {
            "error_code": TOPIC_AUTHORIZATION_FAILED,
            "base_offset": -1,
            "log_append_time_ms": -1,
        }
        refused |= {"log_start_offset": -1, "record_errors": [], "error_message": READ_ONLY}
        return {
            "responses": [
                {
                    "name": topic["name"],
                    "partition_responses": [
                        refused | {"index": each["index"]} for each in topic["partition_data"] or ()
                    ],
                }
                for topic in values["topic_data"] or ()
            ]
        }

    async def _init_producer_id(self, _client: Client, _values: dict[str, Any]) -> dict[str, Any]:
        return {"error_code": CLUSTER_AUTHORIZATION_FAILED, "producer_id": -1, "producer_epoch": -1}

    async def _delete_topics(self, _client: Client, values: dict[str, Any]) -> dict[str, Any]:
        return {"responses": [{"name": name, **_refusal()} for name in values["topic_names"] or ()]}

    async def _delete_records(self, _client: Client, values: dict[str, Any]) -> dict[str, Any]:
        refused = {"low_watermark": -1, **_refusal()}
        return {
            "topics": [
                {"name": topic["name"], "partitions": [{**each, **refused} for each in topic["partitions"] or ()]}
                for topic in values["topics"] or ()
            ]
        }

    def _refused(self, asked: str, answered: str) -> Callable[[Client, dict[str, Any]], Awaitable[dict[str, Any]]]:
        """Return a handler that refuses each element of an array of the request."""

        async def refuse(_client: Client, values: dict[str, Any]) -> dict[str, Any]:
            unknown = {"num_partitions": -1, "replication_factor": -1, "configs": None}
            return {answered: [{**each, **unknown, **_refusal()} for each in values[asked] or ()]}

        return refuse


def _refusal() -> dict[str, Any]:
    return {"error_code": POLICY_VIOLATION, "error_message": READ_ONLY}


def _partition_document(number: int) -> dict[str, Any]:
    nodes: dict[str, Any] = {"replica_nodes": [_NODE], "isr_nodes": [_NODE], "offline_replicas": []}
    return {"partition_index": number, "leader_id": _NODE, "leader_epoch": -1, **nodes}


def _fetched_document(part: PartitionFetch) -> dict[str, Any]:
    return {
        "partition_index": part.number,
        "error_code": part.error,
        "high_watermark": part.end,
        "last_stable_offset": part.end,
        "log_start_offset": part.start,
        "preferred_read_replica": -1,
        "records": [batch.data for batch in part.batches],
    }


async def _offset_at(place: Log, timestamp: int) -> tuple[int, int]:
    """Return offset and timestamp as Kafka answers ListOffsets; -1 if no record is as late."""
    partition = await place.partition(most_age=0 if timestamp == _LATEST else 60)
    if timestamp == _LATEST:
        return partition.next_offset, -1
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return partition.start_offset, -1
    if timestamp == _NEWEST_TIME:
        timestamp = await _newest_time(partition)
    found = await offset_at(partition, AtTime(timestamp))
    return (found.offset, -1 if found.timestamp is None else found.timestamp) if found.found else (-1, -1)


async def _newest_time(partition: ArchivedPartition) -> int:
    """Return the latest timestamp of all records; reads one catalog per level."""
    spans = [span for span in partition.spans if span.next_offset > partition.floor]
    while spans:
        newest = max(spans, key=lambda span: span.max_timestamp)
        if not isinstance(newest, CatalogReference):
            return newest.max_timestamp
        spans = list((await partition.catalog(newest)).entries)
    return 0
