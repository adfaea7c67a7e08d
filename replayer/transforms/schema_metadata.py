"""SetSchemaMetadata: name and version of a schema, where a key or value brings one along."""

from dataclasses import dataclass
from typing import Any

from replayer.transforms.record import CannotTransform, ConnectRecord, Side
from replayer.transforms.settings import Settings


@dataclass(frozen=True)
class SetSchemaMetadata:
    """Changes the schema of JSON of the form `{"schema": {…}, "payload": …}`; null stays null.

    Anything else has no schema to name, and that is an error, as in Connect.
    """

    side: Side
    changes: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, settings: Settings, side: Side) -> "SetSchemaMetadata":
        changes: list[tuple[str, Any]] = []
        name = settings.optional("schema.name")
        if name is not None:
            changes.append(("name", name))
        if settings.optional("schema.version") is not None:
            changes.append(("version", settings.made("schema.version", int)))
        settings.without_effect("replace.null.with.default")
        if not changes:
            raise settings.wrong("schema.name", "neither a name nor a version is set")
        return cls(side, tuple(changes))

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        data = record.part(self.side).data
        if data is None:
            return record
        if not isinstance(data, dict) or data.keys() != {"schema", "payload"} or not isinstance(data["schema"], dict):
            raise CannotTransform('it has no schema: it is not {"schema": {…}, "payload": …}')
        return record.with_data(self.side, data | {"schema": data["schema"] | dict(self.changes)})
