"""DropHeaders, HeaderFrom and InsertHeader."""

from dataclasses import dataclass

from replayer.transforms.record import ConnectRecord, Side, fields_of, text_of
from replayer.transforms.settings import Settings


@dataclass(frozen=True)
class DropHeaders:
    """Without the headers of these names."""

    names: frozenset[str]

    @classmethod
    def of(cls, settings: Settings) -> "DropHeaders":
        return cls(frozenset(settings.names("headers")))

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        return record._replace(headers=tuple(header for header in record.headers if header[0] not in self.names))


@dataclass(frozen=True)
class InsertHeader:
    """One more header with a fixed text."""

    name: str
    value: bytes

    @classmethod
    def of(cls, settings: Settings) -> "InsertHeader":
        return cls(settings.text("header"), settings.text("value.literal").encode())

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        return record._replace(headers=(*record.headers, (self.name, self.value)))


@dataclass(frozen=True)
class HeaderFrom:
    """Copies fields to headers, or moves them; a field that is not there makes a null header."""

    side: Side
    pairs: tuple[tuple[str, str], ...]
    operation: str

    @classmethod
    def of(cls, settings: Settings, side: Side) -> "HeaderFrom":
        fields, headers = settings.names("fields"), settings.names("headers")
        if len(fields) != len(headers):
            raise settings.wrong("headers", f"{len(headers)} headers are named for {len(fields)} fields")
        operation = settings.choice("operation", ("move", "copy"))
        settings.without_effect("replace.null.with.default")
        return cls(side, tuple(zip(fields, headers, strict=True)), operation)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        data = fields_of(record.part(self.side).data)
        found = tuple((header, data.get(field)) for field, header in self.pairs)
        made = tuple((header, None if value is None else text_of(value).encode()) for header, value in found)
        record = record._replace(headers=(*record.headers, *made))
        if self.operation == "copy":
            return record
        moved = {field for field, _ in self.pairs}
        return record.with_data(self.side, {name: value for name, value in data.items() if name not in moved})
