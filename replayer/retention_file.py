"""Where a held retention is written down: one small file a topic and cluster, whole and on the disk, or not there."""

import hashlib
from pathlib import Path

import msgspec

from .errors import ReplayRefused
from .lasting_file import replace_file
from .target_topic import RetentionHold


class RetentionFile:
    """The file for one topic of one cluster in a folder."""

    def __init__(self, folder: Path, cluster: str, topic: str) -> None:
        """`cluster` is its id, or its address where it has none."""
        digest = hashlib.sha256(f"{cluster}\n{topic}".encode()).hexdigest()[:16]
        self.path = folder / f"{topic[:200]}.{digest}.json"

    def read(self) -> RetentionHold | None:
        """What was written down; raises ReplayRefused for a file that cannot be read."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=RetentionHold)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise self._refused(str(error)) from error

    def write(self, hold: RetentionHold) -> None:
        """Writes it down; on the disk when the call returns. Raises ReplayRefused."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, msgspec.json.format(msgspec.json.encode(hold), indent=1))
        except OSError as error:
            raise self._refused(str(error)) from error

    def remove(self) -> None:
        """Nothing is held any more."""
        self.path.unlink(missing_ok=True)

    def _refused(self, why: str) -> ReplayRefused:
        return ReplayRefused(
            f"{self.path} cannot hold what the topic's retention was",
            why=why,
            remedy="make the file usable, or the folder of $XDG_STATE_HOME writable",
        )
