"""The peer `kafka-backup` (https://github.com/osodevops/kafka-backup) as its users run it: one-shot, to a folder."""

import itertools
from pathlib import Path

from benchmarks.measure import Cost, run

BACKUP = """mode: backup
backup_id: "benchmark"
source:
  bootstrap_servers: ["{bootstrap}"]
  topics:
    include: ["{topic}"]
storage:
  backend: filesystem
  path: "{folder}"
backup:
  compression: zstd
  start_offset: earliest
  stop_at_current_offsets: true
metrics:
  enabled: false
"""
RESTORE = """mode: restore
backup_id: "benchmark"
target:
  bootstrap_servers: ["{bootstrap}"]
  topics:
    include: ["{topic}"]
storage:
  backend: filesystem
  path: "{folder}"
restore:
  topic_mapping:
    "{topic}": "{target}"
metrics:
  enabled: false
"""


class KafkaBackup:
    """One build of it; `home` is where its configurations go."""

    def __init__(self, program: Path, home: Path) -> None:
        self._program = program
        self._home = home
        self._numbers = itertools.count()
        self.version = run([program, "--version"]).stdout.strip()

    def backup(self, bootstrap: str, topic: str, folder: Path) -> Cost:
        """All records of a topic into a folder."""
        return self._run("backup", BACKUP.format(bootstrap=bootstrap, topic=topic, folder=folder))

    def restore(self, bootstrap: str, topic: str, target: str, folder: Path) -> Cost:
        """All of them into another topic, which is there."""
        return self._run("restore", RESTORE.format(bootstrap=bootstrap, topic=topic, folder=folder, target=target))

    def _run(self, command: str, configuration: str) -> Cost:
        path = self._home / f"kafka-backup-{next(self._numbers)}.yaml"
        path.write_text(configuration)
        return run([self._program, command, "--config", path]).cost
