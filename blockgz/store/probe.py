"""A check that the store keeps the promises that commits rest on, with scratch objects before the first claim."""

import hashlib
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from blockgz.errors import BlockgzError, StoreUnavailable, unfit_store
from blockgz.store.writer import FileBody, Store

RACERS = 32
OVER_ONE_PART_BYTES = 16 * 1024 * 1024 + 1
# Tries of a write that was wrongly refused, each under a new key: its first answer may have been lost.
TRIES = 3


class _WriteRefused(Exception):
    """A write that had to be accepted was not, or it was and its answer was lost and its repetition refused."""


def probe(store: Store, *, multipart: bool) -> None:
    """Raise StoreUnfit if a conditional write that must be refused is accepted.

    `multipart`: the store writes large objects in parts, so that their completion is probed too.
    """
    folder = f".probe-{uuid.uuid4().hex}/"
    keys: list[str] = []
    questions = {"create": _probe_create, "swap": _probe_swap, "race": _probe_race}
    if multipart:
        questions["parts"] = _probe_parts
    try:
        for name, question in questions.items():
            _ask(store, question, f"{folder}%d-{name}", keys)
    finally:
        # Left-overs do no harm, and what went wrong before must not hide behind a refused DELETE.
        for key in keys:
            with suppress(BlockgzError):
                store.delete(key)


def _ask(store: Store, question: Callable[[Store, str], None], key: str, keys: list[str]) -> None:
    """Ask under a `key` for each try, which is added to `keys`: a single refusal proves nothing."""
    for tries in range(1, TRIES + 1):
        keys.append(key % tries)
        try:
            question(store, keys[-1])
        except _WriteRefused as refused:
            if tries == TRIES:
                raise unfit_store(store.url, str(refused)) from None
        else:
            return


def _probe_create(store: Store, key: str) -> None:
    if not store.put_if_absent(key, b"first", "probe-1"):
        raise _WriteRefused("refused to create a new object")
    if store.put_if_absent(key, b"second", "probe-2"):
        raise unfit_store(store.url, "ignored If-None-Match: * on an existing object")


def _probe_swap(store: Store, key: str) -> None:
    first = store.compare_and_swap(key, b"first", None)
    if first is None:
        raise _WriteRefused("refused to create a new object")
    if store.compare_and_swap(key, b"again", None) is not None:
        raise unfit_store(store.url, "ignored If-None-Match: * on an existing object")
    second = store.compare_and_swap(key, b"second", first)
    if second is None:
        raise _WriteRefused("refused If-Match with the object's own ETag, which some stores want without its quotes")
    if store.compare_and_swap(key, b"third", first) is not None:
        raise unfit_store(store.url, "ignored a stale If-Match")


def _probe_race(store: Store, key: str) -> None:
    def wins(number: int) -> bool:
        try:
            return store.put_if_absent(key, b"%d" % number, f"probe-{number}")
        except StoreUnavailable:
            return False  # S3 answers 409 to some of many that write at once: refused, or not known to have won

    with ThreadPoolExecutor(RACERS) as racers:
        winners = sum(racers.map(wins, range(RACERS)))
    if winners > 1:
        raise unfit_store(store.url, f"let {winners} of {RACERS} concurrent conditional writes win")
    if winners == 0 and store.head(key) is None:
        raise _WriteRefused(f"let none of {RACERS} concurrent conditional writes win")


def _probe_parts(store: Store, key: str) -> None:
    content = bytes(OVER_ONE_PART_BYTES)
    store.put_if_absent(key, b"first", "probe-1")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "parts"
        path.write_bytes(content)
        body = FileBody(path, len(content), hashlib.sha256(content).hexdigest())
        if store.put_if_absent(key, body, "probe-2"):
            raise unfit_store(store.url, "ignored If-None-Match: * on CompleteMultipartUpload")
