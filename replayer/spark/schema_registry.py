"""A schema registry over HTTP: schemas by their id, the newest one of a subject, and those that they refer to.

Source: the API of Confluent's Schema Registry, and the bytes that its serializers put before a value.
"""

import base64
import json
import os
import struct
import time
import urllib.error
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

from blockgz.errors import AccessDenied, NotInArchive, StoreUnavailable, UsageError
from blockgz.references import naming, resolve_references

SECONDS = 10.0
TRIES = 4
MAX_BYTES = 4 * 1024 * 1024
MOST_REFERENCES = 200
HEADER_BYTES = 5
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


class Schema(NamedTuple):
    """A schema as the registry has it: JSON of Avro, or a file descriptor of protobuf in base64."""

    text: str
    references: tuple[tuple[str, str, int], ...] = ()
    """Other schemas that it uses: the name there, the subject and the version."""


def schema_id(content: bytes) -> int:
    """Return the id of the schema that a value was written with; raises ValueError."""
    if len(content) < HEADER_BYTES or content[0]:
        raise ValueError("the value does not begin with a zero byte and the id of a schema")
    number: int = struct.unpack(">I", content[1:HEADER_BYTES])[0]
    return number


class SchemaRegistry:
    """`url` may hold a user and a password, or `${env:NAME}` and `${file:/path}` for them."""

    def __init__(self, url: str) -> None:
        """Raise UsageError for an invalid address, UnresolvedReference for a secret that is not on this machine."""
        self.given = url
        with naming("--schema-registry", remedy="write ${file:/path} or ${env:NAME}"):
            parts = urlsplit(resolve_references(url, os.environ))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                "--schema-registry is not a URL", why="it must be an http or https URL", remedy="https://host:8081"
            )
        host = parts.netloc.rpartition("@")[2]
        # Without user and password.
        self.url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._headers = {"Accept": _ACCEPT}
        if parts.username is not None:
            token = base64.b64encode(f"{parts.username}:{parts.password or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"

    def schema(self, kind: str, number: int) -> Schema | None:
        """Return the schema of that id; None if there is none. Raises as `latest` does."""
        answer = self._get(f"/schemas/ids/{number}", kind)
        return None if answer is None else self._read(answer, kind, f"schema {number}")

    def latest(self, kind: str, subject: str) -> Schema:
        """Return the newest schema of a subject; `kind` is AVRO or PROTOBUF."""
        answer = self._get(f"/subjects/{quote(subject, safe='')}/versions/latest", kind)
        if answer is None:
            raise NotInArchive(
                f"the schema registry has no subject {subject}",
                why="values of a topic are registered as TOPIC-value",
                remedy="give the reader's schema: --schema FILE.avsc",
            )
        return self._read(answer, kind, f"subject {subject}")

    def referred(self, kind: str, schema: Schema) -> dict[str, Schema]:
        """Return the schemas that a schema refers to, directly or not, by name, each after those that it uses."""
        found: dict[str, Schema] = {}
        self._add(kind, schema, found)
        return found

    def _add(self, kind: str, schema: Schema, found: dict[str, Schema], inside: tuple[str, ...] = ()) -> None:
        for name, subject, version in schema.references:
            if name in found:
                continue
            what = f"version {version} of subject {subject}"
            answer = self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}", kind)
            if answer is None or name in inside or len(found) >= MOST_REFERENCES:
                why = "it is not there" if answer is None else "references go in a circle, or are too many"
                raise StoreUnavailable(f"{what} of the schema registry is needed as {name}", why=why)
            used = self._read(answer, kind, what)
            self._add(kind, used, found, (*inside, name))
            found[name] = used

    def _read(self, answer: dict[str, Any], kind: str, what: str) -> Schema:
        if answer.get("schemaType", "AVRO") != kind:
            raise UsageError(
                f"{what} of the schema registry is {answer.get('schemaType', 'AVRO')}", why=f"values are read as {kind}"
            )
        try:
            used = answer.get("references") or ()
            references = tuple((each.get("name"), each.get("subject"), each.get("version")) for each in used)
            return Schema(answer["schema"], references)
        except (AttributeError, KeyError, TypeError) as error:
            raise StoreUnavailable(
                f"the schema registry's answer for {what} holds no schema", why=str(error)
            ) from error

    def _get(self, path: str, kind: str) -> dict[str, Any] | None:
        form = "?format=serialized" if kind == "PROTOBUF" else ""
        request = urllib.request.Request(self.url + path + form, headers=self._headers)
        for attempt in range(1, TRIES + 1):
            try:
                with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                    found: dict[str, Any] = json.loads(answer.read(MAX_BYTES))
                    return found
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 404:
                        return None
                    if error.code in (401, 403):
                        raise AccessDenied(
                            f"the schema registry at {self.url} refuses",
                            why=f"HTTP {error.code}",
                            remedy="put user and password in the URL: https://USER:PASSWORD@HOST",
                        ) from error
                    reason = f"HTTP {error.code}"
            except (OSError, ValueError) as error:
                reason = str(error)
            if attempt < TRIES:
                time.sleep(0.2 * 2**attempt)
        raise StoreUnavailable(
            f"the schema registry at {self.url} does not answer", why=reason, remedy="check --schema-registry"
        )
