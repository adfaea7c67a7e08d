"""What there is to find out of this machine and of the store."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version

from confluent_kafka import libversion

from archiver.doctor.findings import Finding, Verdict, carefully, failed, one_line
from archiver.doctor.judging import judge_clock, judge_identity, judge_space
from blockgz.config.model import RunConfig
from blockgz.encryption.keyring import keyring_of
from blockgz.errors import StoreUnfit
from blockgz.program.version import kernel_words, kernels
from blockgz.store.address import LocalAddress, parse_address
from blockgz.store.customer_key import check_fingerprint, fingerprint_of
from blockgz.store.opening import default_buffer_root, open_store
from blockgz.store.probe import probe
from blockgz.store.writer import ToolStore
from index_format import objects
from index_format.errors import BlockgzError
from index_format.identity import ArchiveInfo
from index_format.keys import LAYOUTS, archive_key

PACKAGES = ("confluent-kafka", "pyarrow", "isal", "boto3")


def check_versions() -> Iterator[Finding]:
    """What is installed, and what is missing."""
    known = [f"Python {python_version()}", f"librdkafka {libversion()[0]}"]
    for package in PACKAGES:
        try:
            known.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            yield Finding("versions", Verdict.FAIL, f"{package} is not installed", f"pip install {package}")
    yield Finding("versions", Verdict.OK, ", ".join(known))


def check_kernels() -> Iterator[Finding]:
    """Whether the C extensions are in use."""
    found = kernels()
    is_slow = not all(found.values()) and not os.environ.get("BLOCKGZ_NO_KERNEL")
    remedy = "for speed, install a C compiler and Python's headers, then reinstall blockgz" if is_slow else ""
    yield Finding("C extensions", Verdict.WARN if is_slow else Verdict.OK, kernel_words(found), remedy)


def check_buffer(config: RunConfig) -> Iterator[Finding]:
    """Whether the buffer's folder can be written, and has room for its budget."""
    folder = (config.buffer_dir or default_buffer_root(config.archive)).absolute()
    there = existing(folder)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(there).free
    except OSError as error:
        detail = f"{folder} cannot be written: {error.strerror or error}"
        yield Finding("buffer", Verdict.FAIL, detail, "fix it, or set another --buffer-dir")
        return
    yield judge_space(folder, free, config.buffer_bytes)


def check_keys(config: RunConfig) -> Iterator[Finding]:
    """Whether the keys of encrypted chunks can be had, and wrap and open a key; nothing where none are asked for."""
    keyring = keyring_of(config.encrypt)
    if keyring is not None:
        made = keyring.new_key()
        keyring.unwrap(made.wrapped, "a key")
        yield Finding("keys", Verdict.OK, f"chunks are encrypted; the newest key is {keyring.newest_id}")


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(each for each in (folder, *folder.parents) if each.is_dir())


def check_store(config: RunConfig, wall: Callable[[], float], cluster_id: str | None) -> Iterator[Finding]:
    """Whether the store answers, is fit for several writers and holds this archive; `wall` is in seconds since 1970."""
    with _opened(config) as store:
        before = wall()
        clock = store.clock()
        yield Finding("store", Verdict.OK, f"{store.url} answers")
        yield judge_clock((before + wall()) / 2 - clock)
        yield from carefully("conditional writes", lambda: _conditional_writes(config, store))
        yield from carefully("archive", lambda: _identity(config, store, cluster_id))
        yield from carefully("unfinished uploads", lambda: _uploads(store))


def _conditional_writes(config: RunConfig, store: ToolStore) -> Iterator[Finding]:
    try:
        probe(store, multipart=store.url.startswith("s3:"))
    except StoreUnfit as error:
        finding = failed("conditional writes", error)
        if config.single_writer:
            yield Finding(
                finding.check,
                Verdict.WARN,
                f"{finding.detail}; with --single-writer, you guarantee that there is only one",
            )
        else:
            yield finding
        return
    yield Finding(
        "conditional writes", Verdict.OK, "two writers are kept apart: every conditional write that must fail does"
    )


def _identity(config: RunConfig, store: ToolStore, cluster_id: str | None) -> Iterator[Finding]:
    found = _identities(store)
    for info in found.values():
        check_fingerprint(info, fingerprint_of(config.customer_key), store.url)
    yield judge_identity(found, config.layout, cluster_id)


def found_archive(config: RunConfig) -> ArchiveInfo | None:
    """What the archive says of itself, None where there is none yet; raises the errors of the store."""
    with _opened(config) as store:
        return next(iter(_identities(store).values()), None)


def _identities(store: ToolStore) -> dict[str, ArchiveInfo]:
    """By layout."""
    stored = {layout: store.get(archive_key(layout)) for layout in LAYOUTS}
    return {
        layout: objects.decode(each.body, ArchiveInfo, archive_key(layout))
        for layout, each in stored.items()
        if each is not None
    }


def _uploads(store: ToolStore) -> Iterator[Finding]:
    try:
        expires = store.expires_uploads()
    except BlockgzError as error:
        detail = f"the lifecycle rules cannot be read: {error.why or error.what}"
        yield Finding("unfinished uploads", Verdict.WARN, one_line(detail), "run archiver gc regularly")
        return
    if expires:
        yield Finding("unfinished uploads", Verdict.OK, "they are cleaned up")
        return
    remedy = "add a lifecycle rule AbortIncompleteMultipartUpload of 7 days, or run archiver gc regularly"
    yield Finding(
        "unfinished uploads",
        Verdict.WARN,
        "those of killed processes stay, and cost money, until they are removed",
        remedy,
    )


@contextmanager
def _opened(config: RunConfig) -> Iterator[ToolStore]:
    """The store; a folder that was made for it is removed again."""
    address = parse_address(config.archive)
    root = address.root() if isinstance(address, LocalAddress) else None
    there = existing(root) if root is not None else None
    try:
        yield open_store(config.archive, config.s3)
    finally:
        while root is not None and root != there:
            with suppress(OSError):
                root.rmdir()
            root = root.parent
