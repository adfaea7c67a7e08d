"""Files of a checkpoint through Java's file systems, without Java."""

from types import SimpleNamespace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from archiver.spark.read_ranges import checkpoint_files


class Stream:
    def __init__(self, text: str | None) -> None:
        self.text = text
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Java:
    """Of a session: one file system, whatever the path."""

    def __init__(self, files: dict[str, Stream]) -> None:
        self._files = files
        path = SimpleNamespace(Path=lambda parent, name: SimpleNamespace(getFileSystem=lambda _: self, name=name))
        text = SimpleNamespace(IOUtils=SimpleNamespace(toString=self._text))
        apache = SimpleNamespace(hadoop=SimpleNamespace(fs=path), commons=SimpleNamespace(io=text))
        self._jvm = SimpleNamespace(org=SimpleNamespace(apache=apache))
        self._jsparkSession = SimpleNamespace(sessionState=lambda: SimpleNamespace(newHadoopConf=lambda: None))

    def open(self, path: Any) -> Stream:
        if path.name not in self._files:
            raise Py4JError("java.io.FileNotFoundException")
        return self._files[path.name]

    def _text(self, stream: Stream, _: str) -> str:
        if stream.text is None:
            raise Py4JError("java.io.IOException: the connection was reset")
        return stream.text


def reader(files: dict[str, Stream]) -> Any:
    session: Any = Java(files)
    spark: SparkSession = session
    return checkpoint_files(spark, "s3a://jobs/orders")


def test_a_file_is_read_and_closed() -> None:
    file = Stream("v1\n{}\n{}")
    assert reader({"offsets/3": file})("offsets/3") == "v1\n{}\n{}"
    assert file.is_closed


def test_what_is_missing_or_cannot_be_read_is_none() -> None:
    broken = Stream(None)
    read = reader({"offsets/3": broken})
    assert read("offsets/2") is None
    assert read("offsets/3") is None
    assert broken.is_closed
