"""The requests and responses of Kafka's protocol that the broker knows, as dictionaries.

A message is written as the protocol's guide has it: `name:kind`, arrays in brackets, and after `@` the versions that
have the field, without it all versions. A length that a client sends is never believed beyond the bytes at hand, and an
array beyond a number of elements.
"""

import re
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

# Elements of all arrays of a request: a dictionary takes many times the bytes that announce it.
MOST_ELEMENTS = 50_000
_NUMBERS = {"int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q", "bool": ">?"}
_NO_UUID = bytes(16)
_LAST_VERSION = 99
_MOST_SHIFT = 28
API_VERSIONS = 18


class MalformedRequest(ValueError):
    """The bytes are not a request that this broker knows."""


class Field(NamedTuple):
    """A field of a message, in versions `first` to `last`."""

    name: str
    kind: "str | Sequence[Field]"
    is_array: bool
    first: int
    last: int


class Api(NamedTuple):
    """A kind of request, in versions `first` to `last`."""

    key: int
    first: int
    last: int
    flexible: int
    """The first version with lengths in as few bytes as they need, and with tagged fields."""
    request: Sequence[Field]
    response: Sequence[Field]


class Request(NamedTuple):
    """A request as it was read."""

    api: Api
    version: int
    correlation: int
    client_id: str
    values: dict[str, Any]


def _fields(text: str) -> Sequence[Field]:
    tokens = re.findall(r"\w+:|[\[\]]|@[\d-]+|\w+", text)
    tokens.reverse()
    return _parse(tokens)


def _parse(tokens: list[str]) -> Sequence[Field]:
    found = []
    while tokens and tokens[-1] != "]":
        name, kind = tokens.pop()[:-1], tokens.pop()
        is_array = kind == "["
        inside: str | Sequence[Field] = kind
        if is_array:
            inside = _parse(tokens) if tokens[-1].endswith(":") else tokens.pop()
            tokens.pop()
        first, last = 0, _LAST_VERSION
        if tokens and tokens[-1].startswith("@"):
            low, dash, high = tokens.pop()[1:].partition("-")
            first, last = int(low or 0), int(high) if dash else _LAST_VERSION
        found.append(Field(name, inside, is_array, first, last))
    return tuple(found)


def _api(key: int, versions: tuple[int, int], flexible: int, request: str, response: str) -> Api:
    return Api(key, *versions, flexible, _fields(request), _fields(response))


_WITH_ERROR = "error_code:int16 error_message:string"
_NEVER = 100
PRODUCE = _api(
    0,
    (3, 9),
    9,
    "transactional_id:string acks:int16 timeout_ms:int32 "
    "topic_data:[name:string partition_data:[index:int32 records:bytes]]",
    "responses:[name:string partition_responses:[index:int32 error_code:int16 base_offset:int64 "
    "log_append_time_ms:int64 log_start_offset:int64@5 record_errors:[batch_index:int32 message:string]@8 "
    "error_message:string@8]] throttle_time_ms:int32",
)
FETCH = _api(
    1,
    (4, 12),
    12,
    "replica_id:int32 max_wait_ms:int32 min_bytes:int32 max_bytes:int32 isolation_level:int8 session_id:int32@7 "
    "session_epoch:int32@7 topics:[topic:string partitions:[partition:int32 current_leader_epoch:int32@9 "
    "fetch_offset:int64 last_fetched_epoch:int32@12 log_start_offset:int64@5 partition_max_bytes:int32]] "
    "forgotten_topics_data:[topic:string partitions:[int32]]@7 rack_id:string@11",
    "throttle_time_ms:int32 error_code:int16@7 session_id:int32@7 responses:[topic:string partitions:["
    "partition_index:int32 error_code:int16 high_watermark:int64 last_stable_offset:int64 log_start_offset:int64@5 "
    "aborted_transactions:[producer_id:int64 first_offset:int64] preferred_read_replica:int32@11 records:bytes]]",
)
LIST_OFFSETS = _api(
    2,
    (1, 8),
    6,
    "replica_id:int32 isolation_level:int8@2 topics:[name:string partitions:[partition_index:int32 "
    "current_leader_epoch:int32@4 timestamp:int64]]",
    "throttle_time_ms:int32@2 topics:[name:string partitions:[partition_index:int32 error_code:int16 timestamp:int64 "
    "offset:int64 leader_epoch:int32@4]]",
)
METADATA = _api(
    3,
    (0, 12),
    9,
    "topics:[topic_id:uuid@10 name:string] allow_auto_topic_creation:bool@4 "
    "include_cluster_authorized_operations:bool@8-10 include_topic_authorized_operations:bool@8",
    "throttle_time_ms:int32@3 brokers:[node_id:int32 host:string port:int32 rack:string@1] cluster_id:string@2 "
    "controller_id:int32@1 topics:[error_code:int16 name:string topic_id:uuid@10 is_internal:bool@1 partitions:["
    "error_code:int16 partition_index:int32 leader_id:int32 leader_epoch:int32@7 replica_nodes:[int32] "
    "isr_nodes:[int32] offline_replicas:[int32]@5] topic_authorized_operations:int32@8] "
    "cluster_authorized_operations:int32@8-10",
)
FIND_COORDINATOR = _api(
    10,
    (0, 4),
    3,
    "key:string@-3 key_type:int8@1 coordinator_keys:[string]@4",
    "throttle_time_ms:int32@1 error_code:int16@-3 error_message:string@1-3 node_id:int32@-3 host:string@-3 "
    f"port:int32@-3 coordinators:[key:string node_id:int32 host:string port:int32 {_WITH_ERROR}]@4",
)
SASL_HANDSHAKE = _api(17, (1, 1), _NEVER, "mechanism:string", "error_code:int16 mechanisms:[string]")
VERSIONS = _api(
    API_VERSIONS,
    (0, 4),
    3,
    "client_software_name:string@3 client_software_version:string@3",
    "error_code:int16 api_keys:[api_key:int16 min_version:int16 max_version:int16] throttle_time_ms:int32@1",
)
CREATE_TOPICS = _api(
    19,
    (2, 6),
    5,
    "topics:[name:string num_partitions:int32 replication_factor:int16 assignments:[partition_index:int32 "
    "broker_ids:[int32]] configs:[name:string value:string]] timeout_ms:int32 validate_only:bool",
    f"throttle_time_ms:int32 topics:[name:string {_WITH_ERROR} num_partitions:int32@5 replication_factor:int16@5 "
    "configs:[name:string value:string read_only:bool config_source:int8 is_sensitive:bool]@5]",
)
DELETE_TOPICS = _api(
    20,
    (1, 5),
    4,
    "topic_names:[string] timeout_ms:int32",
    "throttle_time_ms:int32 responses:[name:string error_code:int16 error_message:string@5]",
)
DELETE_RECORDS = _api(
    21,
    (0, 2),
    2,
    "topics:[name:string partitions:[partition_index:int32 offset:int64]] timeout_ms:int32",
    "throttle_time_ms:int32 topics:[name:string partitions:[partition_index:int32 low_watermark:int64 "
    "error_code:int16]]",
)
INIT_PRODUCER_ID = _api(
    22,
    (0, 4),
    2,
    "transactional_id:string transaction_timeout_ms:int32 producer_id:int64@3 producer_epoch:int16@3",
    "throttle_time_ms:int32 error_code:int16 producer_id:int64 producer_epoch:int16",
)
LEADER_EPOCH = _api(
    23,
    (2, 4),
    4,
    "replica_id:int32@3 topics:[topic:string partitions:[partition:int32 current_leader_epoch:int32 "
    "leader_epoch:int32]]",
    "throttle_time_ms:int32 topics:[topic:string partitions:[error_code:int16 partition:int32 leader_epoch:int32 "
    "end_offset:int64]]",
)
DESCRIBE_CONFIGS = _api(
    32,
    (1, 4),
    4,
    "resources:[resource_type:int8 resource_name:string configuration_keys:[string]] include_synonyms:bool "
    "include_documentation:bool@3",
    "throttle_time_ms:int32 results:[error_code:int16 error_message:string resource_type:int8 resource_name:string "
    "configs:[name:string value:string read_only:bool config_source:int8 is_sensitive:bool "
    "synonyms:[name:string value:string source:int8] config_type:int8@3 documentation:string@3]]",
)
SASL_AUTHENTICATE = _api(
    36, (0, 2), 2, "auth_bytes:bytes", f"{_WITH_ERROR} auth_bytes:bytes session_lifetime_ms:int64@1"
)
CREATE_PARTITIONS = _api(
    37,
    (0, 3),
    2,
    "topics:[name:string count:int32 assignments:[broker_ids:[int32]]] timeout_ms:int32 validate_only:bool",
    f"throttle_time_ms:int32 results:[name:string {_WITH_ERROR}]",
)
ALTER_CONFIGS = _api(
    44,
    (0, 1),
    1,
    "resources:[resource_type:int8 resource_name:string configs:[name:string config_operation:int8 value:string]] "
    "validate_only:bool",
    f"throttle_time_ms:int32 responses:[{_WITH_ERROR} resource_type:int8 resource_name:string]",
)
DESCRIBE_CLUSTER = _api(
    60,
    (0, 1),
    0,
    "include_cluster_authorized_operations:bool endpoint_type:int8@1",
    f"throttle_time_ms:int32 {_WITH_ERROR} endpoint_type:int8@1 cluster_id:string controller_id:int32 "
    "brokers:[broker_id:int32 host:string port:int32 rack:string] cluster_authorized_operations:int32",
)
# All kinds of requests, by key, and their names.
APIS = {value.key: value for value in list(globals().values()) if isinstance(value, Api)}
NAMES = {value.key: name.lower() for name, value in list(globals().items()) if isinstance(value, Api)}


def read_request(body: bytes) -> Request:
    """Return a request; raise MalformedRequest."""
    source = _RequestReader(body, is_flexible=False)
    key, version, correlation = source.number("int16"), source.number("int16"), source.number("int32")
    client_id = source.one("string")
    api = APIS.get(key)
    if api is not None and key == API_VERSIONS and not api.first <= version <= api.last:
        return Request(api, version, correlation, client_id or "", {})  # answered with the versions that are known
    if api is None or not api.first <= version <= api.last:
        raise MalformedRequest(f"a request of kind {key} in version {version}")
    source.is_flexible = version >= api.flexible
    source.skip_tags()
    return Request(api, version, correlation, client_id or "", source.struct(_of_version(api.request, version)))


def response_pieces(api: Api, version: int, correlation: int, values: Mapping[str, Any]) -> list[bytes]:
    """Return the response without its length, in pieces; `bytes` fields may be given as pieces and are not copied.

    A number that is not given is 0, a text or an array null.
    """
    is_flexible = version >= api.flexible
    out = _Sink(is_flexible)
    out.number("int32", correlation)
    # Clients have to read this response before they know the versions.
    if is_flexible and api.key != API_VERSIONS:
        out.head += b"\0"
    out.struct(_of_version(api.response, version), values)
    return [*out.pieces, bytes(out.head)]


@cache
def _of_version(fields: Sequence[Field], version: int) -> Sequence[Field]:
    return tuple(
        field if isinstance(field.kind, str) else field._replace(kind=_of_version(field.kind, version))
        for field in fields
        if field.first <= version <= field.last
    )


class _RequestReader:
    """Reads a message; raises MalformedRequest if it ends too early."""

    def __init__(self, data: bytes, *, is_flexible: bool) -> None:
        self.is_flexible = is_flexible
        self._data = data
        self._at = 0
        self._elements = 0

    def struct(self, fields: Sequence[Field]) -> dict[str, Any]:
        found = {field.name: self._array(field.kind) if field.is_array else self.one(field.kind) for field in fields}
        self.skip_tags()
        return found

    def one(self, kind: str | Sequence[Field]) -> Any:
        if not isinstance(kind, str):
            return self.struct(kind)
        if kind in _NUMBERS:
            return self.number(kind)
        if kind == "uuid":
            return self._take(len(_NO_UUID))
        length = self._length("int16" if kind == "string" else "int32")
        if length < 0:
            return None
        raw = self._take(length)
        try:
            return raw.decode() if kind == "string" else raw
        except UnicodeDecodeError as error:
            raise MalformedRequest("a text that is not UTF-8") from error

    def number(self, kind: str) -> Any:
        form = _NUMBERS[kind]
        (value,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return value

    def skip_tags(self) -> None:
        if self.is_flexible:
            for _ in range(self._unsigned()):
                self._unsigned()
                self._take(self._unsigned())

    def _array(self, kind: str | Sequence[Field]) -> list[Any] | None:
        count = self._length("int32")
        if count < 0:
            return None
        self._elements += count
        if self._elements > MOST_ELEMENTS or count > len(self._data) - self._at:
            raise MalformedRequest("an array with too many elements")
        return [self.one(kind) for _ in range(count)]

    def _length(self, kind: str) -> int:
        return self._unsigned() - 1 if self.is_flexible else int(self.number(kind))

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > _MOST_SHIFT:
                raise MalformedRequest("a number of more than five bytes")

    def _take(self, count: int) -> bytes:
        if not 0 <= count <= len(self._data) - self._at:
            raise MalformedRequest("it ends too early")
        self._at += count
        return self._data[self._at - count : self._at]


class _Sink:
    """Writes a message: `pieces`, then `head`."""

    def __init__(self, is_flexible: bool) -> None:
        self.pieces: list[bytes] = []
        self.head = bytearray()
        self._is_flexible = is_flexible

    def struct(self, fields: Sequence[Field], values: Mapping[str, Any]) -> None:
        for field in fields:
            value = values.get(field.name)
            if not field.is_array:
                self._one(field.kind, value)
                continue
            self._length("int32", -1 if value is None else len(value))
            for each in value or ():
                self._one(field.kind, each)
        if self._is_flexible:
            self.head += b"\0"

    def number(self, kind: str, value: int | None) -> None:
        self.head += struct.pack(_NUMBERS[kind], value or 0)

    def _one(self, kind: str | Sequence[Field], value: Any) -> None:
        if not isinstance(kind, str):
            self.struct(kind, value)
        elif kind in _NUMBERS:
            self.number(kind, value)
        elif kind == "uuid":
            self.head += value or _NO_UUID
        elif isinstance(value, list):
            self._length("int32", sum(map(len, value)))
            self.pieces += [bytes(self.head), *value]
            self.head.clear()
        else:
            raw = value.encode() if isinstance(value, str) else value
            self._length("int16" if kind == "string" else "int32", -1 if raw is None else len(raw))
            self.head += raw or b""

    def _length(self, kind: str, length: int) -> None:
        if self._is_flexible:
            self.head += unsigned_varint(length + 1)
        else:
            self.number(kind, length)


def unsigned_varint(number: int) -> bytes:
    """Return a number as 7 bits a byte, the lowest first, with a bit in every byte but the last."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
