"""Java's classes kept as they are once loaded: a broker or a Spark session then starts in half the time."""

import sys
from pathlib import Path

from system_test.support.environment import cache_folder

BROKER_CLASSES = cache_folder() / "broker-classes" / "classes.jsa"
SPARK_CLASSES = Path(sys.prefix) / "spark-classes" / "classes.jsa"
"""Beside pyspark's jars: Java takes no classes of jars that lie elsewhere."""


def kept_classes(kept: Path) -> tuple[str, ...]:
    """Flags for Java; none where nothing was kept. Java takes no notice of what does not fit its jars."""
    # A warning would stand among what a program prints.
    return (f"-XX:SharedArchiveFile={kept}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off") if kept.exists() else ()


def keeping_classes(kept: Path) -> tuple[str, ...]:
    """Flags for Java that is to keep its classes when it ends."""
    return (f"-XX:ArchiveClassesAtExit={kept}", "-Xlog:disable")
