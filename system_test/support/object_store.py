"""Real S3 servers as child processes: moto server, and the Versity gateway on a folder."""

import os
import sys
import tempfile
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from system_test.support.environment import (
    PartMissingError,
    accepts_connections,
    cache_folder,
    filled_once,
    free_port,
    run_tool,
    tool,
)
from system_test.support.server_process import Server, ServerProcess

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

VERSITYGW_VERSION = "v1.8.0"

_ACCESS_KEY = "system-test"
_SECRET_KEY = "system-test-secret"
_REGION = "us-east-1"
_START_SECONDS = 60.0
_BUILD_SECONDS = 1800.0


class ObjectStore(Server, ABC):
    """An S3 server on a free port of 127.0.0.1 with one bucket. As a context manager it runs inside the block.

    `endpoint_url`, `bucket` and `env` (credentials and region, for child processes) hold over stop and start.
    """

    stop_seconds = 5.0

    def __init__(self, bucket: str = "archive") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="blockgz-s3-")
        self._port = free_port()
        super().__init__()
        self.home = Path(self._folder.name)
        self.log = self.home / "server.log"
        self.bucket = bucket
        self.endpoint_url = f"http://127.0.0.1:{self._port}"
        self.env = {
            "AWS_ACCESS_KEY_ID": _ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET_KEY,
            "AWS_REGION": _REGION,
            "AWS_DEFAULT_REGION": _REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    @abstractmethod
    def _command(self, port: int) -> list[str]:
        """The server's command line for this port of 127.0.0.1."""

    def start(self) -> None:
        """Start, wait until the server answers, and make sure of the bucket. It must not run."""
        if self.running:
            raise RuntimeError("the server runs already")
        self._server = ServerProcess(self._command(self._port), self.log, self.env)
        self._server.wait_ready(self._answers, _START_SECONDS)
        self._ensure_bucket()

    def url(self, prefix: str) -> str:
        """The archive address of a prefix in the bucket."""
        return f"s3://{self.bucket}/{prefix}"

    @cached_property
    def client(self) -> "S3Client":
        """A boto3 client of this server: the back door to what is stored."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=_ACCESS_KEY,
            aws_secret_access_key=_SECRET_KEY,
            region_name=_REGION,
            config=Config(
                s3={"addressing_style": "path"},
                connect_timeout=2,
                read_timeout=30,
                retries={"total_max_attempts": 1},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def keys(self, prefix: str = "") -> list[str]:
        """All keys of the bucket under a prefix, sorted."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return sorted(entry["Key"] for page in pages for entry in page.get("Contents", ()))

    def read(self, key: str) -> bytes:
        """The body of an object of the bucket."""
        with self.client.get_object(Bucket=self.bucket, Key=key)["Body"] as body:
            return body.read()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        self.stop()
        if "client" in self.__dict__:
            self.client.close()
        self._folder.cleanup()

    def _answers(self) -> bool:
        if not accepts_connections(self._port):
            return False
        try:
            self.client.list_buckets()
        except (BotoCoreError, ClientError):
            return False
        return True

    def _ensure_bucket(self) -> None:
        names = {bucket["Name"] for bucket in self.client.list_buckets()["Buckets"]}
        if self.bucket not in names:
            self.client.create_bucket(Bucket=self.bucket)


class MotoServer(ObjectStore):
    """moto's server of the running environment. It keeps objects in memory: a stop loses them."""

    def _command(self, port: int) -> list[str]:
        return [sys.executable, "-m", "system_test.support.moto_server", "-H", "127.0.0.1", "-p", str(port)]


class VersityGateway(ObjectStore):
    """versitygw on a folder: objects are files below `root` and outlive a stop, a kill and a start."""

    def __init__(self, bucket: str = "archive") -> None:
        self._program = versitygw_program()
        super().__init__(bucket)
        self.root = self.home / "root"
        self.root.mkdir()

    def _command(self, port: int) -> list[str]:
        listen = ["--port", f"127.0.0.1:{port}", "--access", _ACCESS_KEY, "--secret", _SECRET_KEY]
        metadata = []
        if not _keeps_attributes(self.root):
            sidecar = self.home / "metadata"
            sidecar.mkdir(exist_ok=True)
            metadata = ["--sidecar", str(sidecar)]
        shared = ["--quiet", "--keep-alive", "--region", _REGION]
        return [str(self._program), *shared, *listen, "posix", *metadata, str(self.root)]


def versitygw_program() -> Path:
    """The gateway's binary: `bin/versitygw` of the cache, or one on PATH, or built with Go into the cache (minutes).

    PartMissingError without Go or when the build fails.
    """
    kept = cache_folder() / "bin" / "versitygw"
    if kept.exists():
        return kept
    try:
        return Path(tool("versitygw"))
    except PartMissingError:
        pass

    def build(folder: Path) -> None:
        module = f"github.com/versity/versitygw/cmd/versitygw@{VERSITYGW_VERSION}"
        run_tool([tool("go"), "install", module], seconds=_BUILD_SECONDS, env={"GOBIN": str(folder)})

    return filled_once(cache_folder() / f"versitygw-{VERSITYGW_VERSION}", build) / "versitygw"


def _keeps_attributes(folder: Path) -> bool:
    """Whether the file system stores user attributes, which the gateway keeps its metadata in."""
    try:
        os.setxattr(folder, "user.blockgz.probe", b"1")
        os.removexattr(folder, "user.blockgz.probe")
    except (AttributeError, OSError):
        return False
    return True
