"""Objects that are damaged or deleted in the real store, and the commands that repair what was lost, one at a time."""

import json
import time
from collections.abc import Callable, Sequence

from system_test.faults.archivers import Archiver
from system_test.faults.asked import Loss
from system_test.faults.watcher import Watcher, parse_home

REFETCH, LOOK, ACCEPT = "refetch", "look", "accept-loss"
_DO_NOT_COME_BACK = "do not come back"
_REPAIRED = "repaired: "


class Losses:
    """Inflicts losses, and decides which command is next."""

    def __init__(self, watcher: Watcher, is_gone: Callable[[str, int], bool]) -> None:
        """`is_gone`: whether Kafka may have lost the record of a partition's folder at an offset."""
        self.archive = watcher.root
        self._watcher = watcher
        self._is_gone = is_gone
        self._next = REFETCH
        self._ranges: list[str] = []
        """Places that the next `accept-loss` is given, as `--dry-run` showed them."""
        self.all: list[Loss] = []

    @property
    def open(self) -> Loss | None:
        """The loss that is not repaired yet; there is one at most."""
        return self.all[-1] if self.all and self.all[-1].closed is None else None

    def inflict(self, dice: float) -> Loss | None:
        """Change a byte of a chunk's data, or delete it, or its index as well; None if there is nothing to lose now."""
        chunks = self._watcher.chunks()
        if len(self.all) % 2:
            gone = [each for each in chunks if self._is_gone(each[0], int(each[1].rpartition("/")[2][:20]))]
            chunks = gone or chunks
        if self.open is not None or not chunks:
            return None
        home, index_key = chunks[int(dice * len(chunks))]
        try:
            index = json.loads((self.archive / index_key).read_bytes())
            loss = self._lost(home, index_key, index, ("damaged", "gone", "both gone")[int(dice * 1e6) % 3])
        except FileNotFoundError:  # it was replaced and collected a moment ago
            return None
        self.all.append(loss)
        self._next = REFETCH
        return loss

    def _lost(self, home: str, index_key: str, index: dict[str, object], kind: str) -> Loss:
        data, blocks = index["data"], index["chunks"]
        assert isinstance(data, dict) and isinstance(blocks, list)
        spans = [(block["first_record_offset"], block["last_record_offset"] + 1) for block in blocks]
        keys, path = [home + data["name"]], self.archive / (home + data["name"])
        self._watcher.lost.add(keys[0])
        if kind == "damaged":
            number = len(blocks) // 2
            at = blocks[number]["byte_offset"] + blocks[number]["byte_length"] // 2
            spans = spans[number : number + 1]
            with path.open("r+b") as file:
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 0xFF]))
        else:
            path.unlink()
        if kind == "both gone":
            keys.append(index_key)
            self._watcher.lost.add(index_key)
            (self.archive / index_key).unlink()
            spans = [(spans[0][0], spans[-1][1])]
        # Without its index, nobody knows which records of a rewritten chunk were erased.
        comes_back = kind != "both gone" or "~r" not in index_key
        chunk = (int(str(index["start_offset"])), int(str(index["next_offset"])))
        return Loss(home, kind, keys, chunk, spans, comes_back=comes_back, at=time.time())

    def look(self, *, is_repairing: bool) -> None:
        """Note whether no marker leads to what was lost any longer."""
        loss = self.open
        if loss is not None and not is_repairing and not self._watcher.leads_to(loss.keys[0]):
            loss.closed = time.time()

    def arguments(self, bootstrap: Sequence[object]) -> tuple[str, tuple[object, ...]] | None:
        """The next command for the open loss, and its arguments."""
        if (loss := self.open) is None:
            return None
        topic, incarnation, partition = parse_home(loss.home)
        place = f"{topic}~{incarnation}:{partition}" if incarnation > 1 else f"{topic}:{partition}"
        if self._next == REFETCH:  # somebody is there who agrees: see hurried.py
            return REFETCH, ("repair", REFETCH, place, *bootstrap)
        if self._next == LOOK:
            return LOOK, ("repair", ACCEPT, place, "--dry-run", "--json", *bootstrap)
        return ACCEPT, ("repair", ACCEPT, *(f"{place}:{each}" for each in self._ranges), "--yes", *bootstrap)

    def ended(self, command: str, process: Archiver) -> None:
        """Decide on the next command, by how one ended."""
        loss, said = self.open, process.log.read_text(errors="replace")
        self._next = REFETCH
        if loss is not None and _REPAIRED in said:
            loss.how = command
        elif command == REFETCH and _DO_NOT_COME_BACK in said:
            self._next = LOOK
        elif command == LOOK:
            shown = [json.loads(line)["lost"] for line in said.splitlines() if line.startswith("{")]
            rows = [row for rows in shown for row in rows if row["result"].startswith("becomes a gap")]
            self._ranges = [f"{row['from']}-{row['to']}" for row in rows]
            self._next = ACCEPT if rows else REFETCH
