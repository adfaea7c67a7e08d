"""A real Apache Kafka broker: KRaft mode, one process that is broker and controller, jars from Maven Central."""

import base64
import re
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from system_test.support.environment import (
    QUICK_JAVA,
    accepts_connections,
    cache_folder,
    filled_once,
    free_port,
    run_tool,
    tool,
)
from system_test.support.java_classes import BROKER_CLASSES, keeping_classes, kept_classes
from system_test.support.maven import jars_with_dependencies
from system_test.support.server_process import Server, ServerFailedError, ServerProcess

KAFKA_VERSION = "4.1.2"
CONSUMER_SESSION_MS = 6000
_SLF4J_VERSION = "1.7.36"
_START_SECONDS = 90.0
_FORMATTED_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""In the data folder that is formatted once; each broker gets a cluster id of its own in its copy."""

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    # A killed broker that comes back waits until the controller has given up its last life: 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    # Sessions of KIP-848 are the broker's to set: 45 s by default, for which a killed member holds its partitions.
    "group.consumer.session.timeout.ms": str(CONSUMER_SESSION_MS),
    "group.consumer.min.session.timeout.ms": str(CONSUMER_SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "message.max.bytes": str(32 << 20),
    "replica.fetch.max.bytes": str(32 << 20),
    "socket.request.max.bytes": str(128 << 20),
    # Retention and compaction at the pace of a test: the defaults are minutes.
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.index.size.max.bytes": str(1 << 20),
}


def kafka_jars() -> Path:
    """The folder with the broker's jars; PartMissingError where they cannot be had."""
    artifacts = [f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", f"org.slf4j:slf4j-simple:{_SLF4J_VERSION}"]
    return jars_with_dependencies(f"kafka-{KAFKA_VERSION}", artifacts)


def keep_broker_classes() -> Path:
    """What a broker loads, kept for all that start later."""

    def keep(folder: Path) -> None:
        with KafkaBroker(java=keeping_classes(folder / BROKER_CLASSES.name)):
            pass

    return filled_once(BROKER_CLASSES.parent, keep)


class KafkaBroker(Server):
    """A broker on free ports of 127.0.0.1 with a data folder of its own; it keeps both over stop, kill and start.

    As a context manager it is started, and in the end stopped and its folder deleted.
    """

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        advertised_port: int | None = None,
        listeners: Sequence[str] = (),
        java: Sequence[str] = (),
        joins: "KafkaBroker | None" = None,
    ) -> None:
        """`settings` of the broker, beside those of all tests; `advertised_port` is where it sends clients to.

        `listeners` are further ones by name, whose protocols `settings` say; `java` are flags for Java. A broker that
        `joins` another one, which runs, is the second of its cluster.
        """
        self._joins = joins
        of_second = {"process.roles": "broker", "node.id": "2"} if joins is not None else {}
        self._settings = _SETTINGS | of_second | dict(settings or {})
        classes = java or kept_classes(BROKER_CLASSES)
        self._java = [tool("java"), "-Xmx512m", "-XX:+UseSerialGC", "-Xshare:auto", *QUICK_JAVA, *classes]
        self._jars = kafka_jars()
        self._folder = tempfile.TemporaryDirectory(prefix="blockgz-kafka-")
        home = Path(self._folder.name)
        self._configuration = home / "server.properties"
        self._data = home / "data"
        super().__init__()
        self._listeners = dict.fromkeys(listeners, 0)
        self._advertised_elsewhere = advertised_port
        self._choose_ports()
        self.log = home / "broker.log"

    def _choose_ports(self) -> None:
        self.port = free_port()
        self._advertised_port = self._advertised_elsewhere or self.port
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._controller_port = free_port(self.port)
        for name in self._listeners:
            self._listeners[name] = free_port(self.port, self._controller_port, *self._listeners.values())

    def start(self) -> None:
        """Start (formatting the data folder the first time) and wait until the broker answers. It must not run."""
        if self.running:
            raise RuntimeError("the broker runs already")
        if not self._data.exists():
            self._format()
        self._server = ServerProcess(self._command("kafka.Kafka", str(self._configuration)), self.log)
        self._server.wait_ready(self._answers, _START_SECONDS)

    def restart(self) -> None:
        """Stop in good order, if it runs, and start on the same port and data."""
        self.stop()
        self.start()

    def bootstrap_of(self, listener: str) -> str:
        """Where clients of a further listener go."""
        return f"127.0.0.1:{self._listeners[listener]}"

    def log_segment(self, topic: str, partition: int = 0) -> Path:
        """The file with the records of a partition that has one segment; for breaking it while the broker is down."""
        (segment,) = (self._data / f"{topic}-{partition}").glob("*.log")
        return segment

    def lose_log(self, topic: str, partition: int = 0) -> None:
        """Delete all that the stopped broker holds of a partition: it begins at offset 0, the topic's id stays."""
        shutil.rmtree(self._data / f"{topic}-{partition}")

    def segment_starts(self, topic: str, partition: int = 0) -> set[int]:
        """The first offset of every segment that is there now: retention moves the low watermark to one of them."""
        return {int(path.stem) for path in (self._data / f"{topic}-{partition}").glob("*.log")}

    def cleaned_to(self, topic: str, partition: int = 0) -> int:
        """The offset that the log cleaner has come to, as it last wrote it down; 0 before its first pass."""
        with suppress(FileNotFoundError):
            for line in (self._data / "cleaner-offset-checkpoint").read_text().splitlines():
                match line.split():
                    case [name, number, offset] if (name, number) == (topic, str(partition)):
                        return int(offset)
        return 0

    def __enter__(self) -> Self:
        try:
            self._start_first()
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def _start_first(self) -> None:
        """Start; on other ports if somebody was quicker to take one of these."""
        for _ in range(2):
            try:
                self.start()
            except ServerFailedError as error:
                if "Address already in use" not in str(error):
                    raise
                shutil.rmtree(self._data)
                self._choose_ports()
            else:
                return
        self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._folder.cleanup()

    def _format(self) -> None:
        more = [f"{name}://{self.bootstrap_of(name)}" for name in self._listeners]
        ours = [f"PLAINTEXT://{self.bootstrap}", f"CONTROLLER://127.0.0.1:{self._controller_port}"]
        first = self._joins or self
        if first is not self:
            ours.pop()
        settings = {
            **self._settings,
            "listeners": ",".join([*ours, *more]),
            "advertised.listeners": ",".join([f"PLAINTEXT://127.0.0.1:{self._advertised_port}", *more]),
            "controller.quorum.voters": f"1@127.0.0.1:{first._controller_port}",
            "log.dirs": str(self._data),
        }
        self._configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        shutil.copytree(filled_once(cache_folder() / f"formatted-{KAFKA_VERSION}", self._format_once), self._data)
        properties = self._data / "meta.properties"
        text = properties.read_text()
        if self._joins is None:
            properties.write_text(text.replace(_FORMATTED_ID, _new_id()))
        else:
            (cluster_id,) = re.findall(r"cluster\.id=(.*)", (self._joins._data / "meta.properties").read_text())
            text = text.replace(_FORMATTED_ID, cluster_id).replace("node.id=1", "node.id=2")
            properties.write_text(re.sub(r"directory\.id=.*", f"directory.id={_new_id()}", text))

    def _format_once(self, folder: Path) -> None:
        configuration = self._configuration.with_name("format.properties")
        configuration.write_text(f"{self._configuration.read_text()}log.dirs={folder}\n")
        arguments = ("format", f"--cluster-id={_FORMATTED_ID}", f"--config={configuration}")
        run_tool(self._command("kafka.tools.StorageTool", *arguments), seconds=_START_SECONDS)

    def _command(self, main: str, *arguments: str) -> list[str]:
        logging = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")
        return [*self._java, *logging, "-cp", f"{self._jars}/*", main, *arguments]

    def _answers(self) -> bool:
        if not accepts_connections(self.port):
            return False
        try:
            with KafkaAdminClient(bootstrap_servers=self.bootstrap, bootstrap_timeout_ms=5000) as admin:
                return bool(admin.describe_cluster()["brokers"])
        except KafkaError:
            return False


def _new_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
