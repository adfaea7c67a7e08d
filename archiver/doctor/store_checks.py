"""What there is to find out of the store."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from archiver.config.model import RunConfig
from archiver.doctor.findings import Finding, Verdict, carefully, failed, one_line
from archiver.doctor.judging import judge_clock, judge_identity
from archiver.doctor.machine_checks import existing
from blockgz_runtime.errors import StoreUnfit
from blockgz_runtime.store.address import LocalAddress, parse_address
from blockgz_runtime.store.opening import open_store
from blockgz_runtime.store.probe import probe
from blockgz_runtime.store.writer import ToolStore
from index_format import objects
from index_format.errors import BlockgzError
from index_format.identity import ArchiveInfo
from index_format.keys import LAYOUTS, archive_key


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
            yield Finding(finding.check, Verdict.WARN, f"{finding.detail}; --single-writer trusts that there is one")
        else:
            yield finding
        return
    yield Finding("conditional writes", Verdict.OK, "two writers are kept apart: all that must be refused is refused")


def _identity(config: RunConfig, store: ToolStore, cluster_id: str | None) -> Iterator[Finding]:
    found = {}
    for layout in LAYOUTS:
        stored = store.get(archive_key(layout))
        if stored is not None:
            found[layout] = objects.decode(stored.body, ArchiveInfo, archive_key(layout))
    yield judge_identity(found, config.layout, cluster_id)


def _uploads(store: ToolStore) -> Iterator[Finding]:
    try:
        expires = store.expires_uploads()
    except BlockgzError as error:
        detail = f"the lifecycle rules cannot be read: {error.why or error.what}"
        yield Finding("unfinished uploads", Verdict.WARN, one_line(detail), "run archiver gc now and then")
        return
    if expires:
        yield Finding("unfinished uploads", Verdict.OK, "none stays for ever")
        return
    remedy = "add a lifecycle rule AbortIncompleteMultipartUpload of 7 days, or run archiver gc now and then"
    yield Finding(
        "unfinished uploads", Verdict.WARN, "those of killed processes stay, and cost, until somebody acts", remedy
    )


@contextmanager
def _opened(config: RunConfig) -> Iterator[ToolStore]:
    """The store; a folder that was made for it is removed again."""
    address = parse_address(config.archive)
    root = address.root() if isinstance(address, LocalAddress) else None
    there = existing(root) if root is not None else None
    try:
        yield open_store(config.archive, endpoint_url=config.endpoint_url, region=config.region)
    finally:
        while root is not None and root != there:
            with suppress(OSError):
                root.rmdir()
            root = root.parent
