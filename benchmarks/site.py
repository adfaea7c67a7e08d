"""What the sections measure on: a broker, an S3 server, a disk, and topics that are filled once."""

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

from benchmarks import data
from benchmarks.data import TopicShape
from benchmarks.measure import Cost, Done, bare, program
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import VersityGateway
from system_test.support.topics import create_topic, delete_topic, watermarks

MB = 1_000_000


@dataclass(frozen=True)
class Settings:
    """How large and how often."""

    mb: int = 200
    """Megabytes of values in a topic."""
    spark_mb: int = 1000
    runs: int = 3
    kafka_backup: Path | None = None

    def shape(self, value_bytes: int = 1024, share: float = 1, **facts: object) -> TopicShape:
        """A topic of that share of `mb`; of small values half of it, or most of the time would go into them."""
        share = share / 2 if value_bytes < 1000 else share
        records = int(self.mb * share * MB / value_bytes) // 64 * 64
        return TopicShape(max(64, records), value_bytes, **facts)  # type: ignore[arg-type]


@dataclass
class Site:
    """Everything is made when it is first asked for, and gone when the site is closed."""

    settings: Settings
    stack: ExitStack
    home: Path
    _broker: KafkaBroker | None = None
    _store: VersityGateway | None = None
    _topics: set[TopicShape] = field(default_factory=set)
    _numbers: int = 0
    _started: float = field(default_factory=time.monotonic)

    @property
    def bootstrap(self) -> str:
        if self._broker is None:
            self._broker = self.stack.enter_context(KafkaBroker())
        return self._broker.bootstrap

    @property
    def store(self) -> VersityGateway:
        if self._store is None:
            self._store = self.stack.enter_context(VersityGateway())
        return self._store

    def say(self, what: str) -> None:
        print(f"  [{time.monotonic() - self._started:5.0f} s] {what}", flush=True)

    def topic(self, shape: TopicShape) -> str:
        if shape not in self._topics:
            self.say(f"filling {shape.name}")
            data.fill(self.bootstrap, shape)
            self._topics.add(shape)
        return shape.name

    def drop(self, shape: TopicShape) -> None:
        if shape in self._topics:
            delete_topic(self.bootstrap, shape.name)
            self._topics.remove(shape)

    def new_name(self, kind: str) -> str:
        self._numbers += 1
        return f"{kind}-{self._numbers}"

    def folder(self, kind: str) -> Path:
        return self.home / self.new_name(kind)

    def archive_to(
        self, address: str, shape: TopicShape, *options: object, env: Mapping[str, str] | None = None
    ) -> Done:
        """`archiver run --once` of a topic; every record must have been archived."""
        arguments = ["archiver", "run", self.topic(shape), "-b", self.bootstrap, "-a", address, "--once", "--json"]
        done = program(*arguments, *options, env=env)
        archived = sum(each["records"] for each in done.json["partitions"])
        if archived != shape.records:
            raise SystemExit(f"{archived} of {shape.records} records of {shape.name} were archived")
        return done

    def archive_to_s3(self, shape: TopicShape, *options: object) -> Done:
        """The same into the S3 server, its buffer in a folder."""
        address, buffer = self.store.url(self.new_name("archive")), self.folder("buffer")
        where = ("--endpoint-url", self.store.endpoint_url, "--buffer-dir", buffer)
        return self.archive_to(address, shape, *options, *where, env=self.store.env)

    def archiving(self, shape: TopicShape, *options: object, env: Mapping[str, str] | None = None) -> Cost:
        """Return what archiving the topic into a new folder costs; the folder is deleted."""
        folder = self.folder("archive")
        cost = self.archive_to(str(folder), shape, *options, env=env).cost
        clear(folder)
        return cost

    def archived(self, shape: TopicShape, *options: object) -> Path:
        """An archive of the topic in a folder of its own."""
        folder = self.folder("archive")
        self.archive_to(str(folder), shape, *options)
        return folder

    def bare(self, part: str, shape: TopicShape | None = None, **facts: object) -> Cost:
        """One part without us; see `benchmarks.bare`."""
        words: list[object] = [part]
        if shape is not None:
            words += ["--bootstrap", self.bootstrap, "--shape", orjson.dumps(asdict(shape)).decode()]
        for name, value in facts.items():
            words += [f"--{name}", value]
        return bare(*words)

    def check_count(self, topic: str, shape: TopicShape) -> None:
        """End the run if the topic, into which no transaction wrote, does not hold as many records."""
        bounds = [watermarks(self.bootstrap, topic, number) for number in range(shape.partitions)]
        found = sum(high - low for low, high in bounds)
        if found != shape.records:
            raise SystemExit(f"{found} of {shape.records} records arrived in {topic}")

    @contextmanager
    def target(self, shape: TopicShape) -> Iterator[str]:
        """An empty topic to produce to, gone afterwards."""
        name = self.new_name("target")
        create_topic(self.bootstrap, name, shape.partitions, data.LARGE_RECORDS)
        try:
            yield name
        finally:
            delete_topic(self.bootstrap, name)


@contextmanager
def opened(settings: Settings) -> Iterator[Site]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="blockgz-bench-")))
        yield Site(settings, stack, home)


def stored_bytes(folder: Path, suffixes: Sequence[str] = (".gz", ".zst")) -> int:
    """Bytes of the data files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in suffixes)


def all_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
