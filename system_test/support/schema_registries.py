"""Real schema registries that keep their schemas in a topic: Apicurio from Maven Central, and a Karapace on PATH."""

import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from system_test.support.environment import cache_folder, filled_once, free_port, tool
from system_test.support.maven import single_jars
from system_test.support.server_process import ServerProcess

APICURIO_VERSION = "3.0.9"
_START_SECONDS = 90.0
_ASK_SECONDS = 30.0


@dataclass(frozen=True)
class Registry:
    """A running registry, asked by the paths of Confluent's API."""

    url: str

    def ask(self, path: str, method: str = "GET", body: Mapping[str, object] | None = None) -> tuple[int, Any]:
        """The status and the body of an answer."""
        data = None if body is None else json.dumps(body).encode()
        media = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        try:
            with urlopen(Request(self.url + path, data, media, method=method), timeout=_ASK_SECONDS) as answer:
                return int(answer.status), json.loads(answer.read() or b"null")
        except HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"null")

    def change(self, method: str, path: str, **body: object) -> Any:
        """The body of the answer to a request that must succeed."""
        status, answer = self.ask(path, method, body or None)
        assert status == 200, (method, path, status, answer)
        return answer

    def register(self, subject: str, schema: object, **more: object) -> int:
        """The id of a schema, which the registry may know already."""
        return int(self.change("POST", f"/subjects/{subject}/versions", schema=json.dumps(schema), **more)["id"])


@contextmanager
def apicurio(bootstrap: str, folder: Path) -> Iterator[Registry]:
    """Apicurio with its storage in topics of the cluster."""
    port = free_port()
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "apicurio.storage.kind": "kafkasql",
        "apicurio.kafkasql.bootstrap.servers": bootstrap,
        "apicurio.events.kafka.config.bootstrap.servers": bootstrap,
        "apicurio.storage.snapshot.location": folder,
    }
    (jar,) = apicurio_program().glob("*-runner.jar")
    memory = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    options = [f"-D{name}={value}" for name, value in settings.items()]
    registry = Registry(f"http://127.0.0.1:{port}/apis/ccompat/v7")
    with _running([tool("java"), *memory, *options, "-jar", str(jar)], {}, folder, lambda: registry.ask("/subjects")):
        yield registry


@contextmanager
def karapace(bootstrap: str, folder: Path) -> Iterator[Registry]:
    """Karapace with its storage in the topic `_schemas`."""
    port = free_port()
    settings = {
        "BOOTSTRAP_URI": bootstrap,
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "ADVERTISED_HOSTNAME": "127.0.0.1",
        "ADVERTISED_PORT": str(port),
        "KARAPACE_REGISTRY": "true",
        "LOG_LEVEL": "INFO",
    }
    env = {f"KARAPACE_{name}": value for name, value in settings.items()}
    registry = Registry(f"http://127.0.0.1:{port}")

    def writes() -> bool:
        return registry.ask("/master_available") == (200, {"master_available": True})

    with _running([karapace_program()], env, folder, writes):
        yield registry


@contextmanager
def _running(command: list[str], env: Mapping[str, str], folder: Path, ready: Callable[[], object]) -> Iterator[None]:
    def answers() -> object:
        with suppress(OSError, HTTPException, ValueError):
            return ready()
        return False

    folder.mkdir()
    # The tree under test is no part of a registry.
    server = ServerProcess(command, folder / "registry.log", {**env, "PYTHONPATH": ""})
    try:
        server.wait_ready(answers, _START_SECONDS)
        yield
    finally:
        server.stop()


def apicurio_program() -> Path:
    """The folder with Apicurio; PartMissingError where Maven does not get it."""
    name = f"apicurio-{APICURIO_VERSION}"

    def unpack(folder: Path) -> None:
        (archive,) = single_jars(name, [f"io.apicurio:apicurio-registry-app:{APICURIO_VERSION}:tar.gz:all"]).iterdir()
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")

    return filled_once(cache_folder() / name / "program", unpack)


def karapace_program() -> str:
    """Karapace as it was installed; PartMissingError where it is not on PATH."""
    return tool("karapace")
