"""A schema registry for as long as a test runs: schemas by id and the newest of a subject, over HTTP."""

from __future__ import annotations

import io
import json
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fastavro import parse_schema, schemaless_writer


def avro_value(schema_id: int, schema: Any, content: Any) -> bytes:
    """Return an Avro value as the clients of a schema registry write it."""
    body = io.BytesIO()
    schemaless_writer(body, parse_schema(schema), content)
    return b"\0" + struct.pack(">I", schema_id) + body.getvalue()


@contextmanager
def schema_registry(schemas: Mapping[int, Any], subjects: Mapping[str, int]) -> Iterator[tuple[str, list[str]]]:
    """One with Avro schemas: its URL, and the paths that were asked for."""
    answers = {f"/schemas/ids/{number}": {"schema": json.dumps(schema)} for number, schema in schemas.items()}
    for subject, number in subjects.items():
        answers[f"/subjects/{subject}/versions/latest"] = {
            "subject": subject,
            "id": number,
            "schema": json.dumps(schemas[number]),
        }
    with registry_of(answers) as served:
        yield served


@contextmanager
def registry_of(answers: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """One that gives these answers to paths: its URL, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            answer = answers.get(self.path)
            body = json.dumps(answer or {"error_code": 40403, "message": "not found"}).encode()
            self.send_response(200 if answer else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Keeps quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()
