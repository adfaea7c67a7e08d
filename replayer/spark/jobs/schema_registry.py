"""A schema registry over HTTP: schemas by their id, and the newest one of a subject."""

import base64
import json
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from blockgz_runtime.errors import AccessDenied, NotInArchive, StoreUnavailable, UsageError

SECONDS = 10.0
TRIES = 4
MAX_BYTES = 4 * 1024 * 1024
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


class SchemaRegistry:
    """`url` may hold a user and a password."""

    def __init__(self, url: str) -> None:
        """Raises UsageError for what is no address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                "--schema-registry is not a URL", why="it must be an http or https URL", remedy="https://host:8081"
            )
        host = parts.netloc.rpartition("@")[2]
        self.url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        """Without user and password."""
        self._headers = {"Accept": _ACCEPT}
        if parts.username is not None:
            token = base64.b64encode(f"{parts.username}:{parts.password or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"

    def schema(self, number: int) -> Any:
        """The Avro schema of that id, as JSON; None where there is none. Raises as `latest` does."""
        answer = self._get(f"/schemas/ids/{number}")
        return None if answer is None else self._avro(answer, f"schema {number}")

    def latest(self, subject: str) -> Any:
        """The newest Avro schema of a subject; raises NotInArchive, StoreUnavailable, AccessDenied or UsageError."""
        answer = self._get(f"/subjects/{quote(subject, safe='')}/versions/latest")
        if answer is None:
            raise NotInArchive(
                f"the schema registry has no subject {subject}",
                why="values of a topic are registered as TOPIC-value",
                remedy="give the reader's schema: --schema FILE.avsc",
            )
        return self._avro(answer, f"subject {subject}")

    def _avro(self, answer: dict[str, Any], what: str) -> Any:
        if answer.get("schemaType", "AVRO") != "AVRO":
            raise UsageError(f"{what} of the schema registry is {answer['schemaType']}", why="values are read as Avro")
        if answer.get("references"):
            raise UsageError(
                f"{what} of the schema registry refers to other schemas",
                why="references are not followed",
                remedy="give a schema that contains all its types with --schema",
            )
        try:
            return json.loads(answer["schema"])
        except (KeyError, ValueError) as error:
            raise StoreUnavailable(
                f"the schema registry's answer for {what} holds no schema", why=str(error)
            ) from error

    def _get(self, path: str) -> dict[str, Any] | None:
        request = urllib.request.Request(self.url + path, headers=self._headers)
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
