"""One line of record format `json`, as it is written and read (FORMAT.md, "Record format json")."""

import msgspec
from msgspec import UNSET, UnsetType

Text = str | None | UnsetType
Base64 = bytes | UnsetType


class HeaderLine(msgspec.Struct, gc=False):
    """One header; exactly one of the two value fields is set."""

    key: str
    value: Text = UNSET
    value_base64: Base64 = UNSET


class RecordLine(msgspec.Struct, gc=False):
    """One record in the order of its fields on the line."""

    offset: int
    timestamp: int
    timestamp_type: str | UnsetType = UNSET
    key: Text = UNSET
    key_base64: Base64 = UNSET
    headers: list[HeaderLine] | UnsetType = UNSET
    value: Text = UNSET
    value_base64: Base64 = UNSET
