"""`archiver erase`."""

import hashlib
import os
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from archiver.cli.rewrite_options import buffer_options, rewrite_keys_options
from archiver.commit.archive import archive_info, layout_of
from archiver.commit.driver import Driver, NoLog
from archiver.commit.lost_markers import lost_marker
from archiver.errors import RewriteRefused
from archiver.ingest.buffer import BufferFolder
from archiver.maintain.contents.keys import RewriteKeys
from archiver.maintain.contents.offset_ranges import OffsetRanges
from archiver.maintain.erase.places import parse_offsets, places_of
from archiver.maintain.erase.report import (
    COMPLETION_FORMAT,
    ERASE_FORMAT,
    ErasedPartition,
    EraseReport,
    NotSearched,
    Remains,
    read_report,
    remains_of,
)
from archiver.maintain.erase.running import erase_in
from archiver.maintain.erase.search import AtOffsets, FoundRecords, Matching, Wanted, find_records
from archiver.maintain.partitions import Problem
from archiver.maintain.sweep import read_chain
from blockgz.atomic_file import replace_file, write_private
from blockgz.errors import PARTLY_FAILED, UsageError
from blockgz.program.archive_options import max_block_option, store_options, writing_s3_options
from blockgz.program.filter_options import grep_option, header_option
from blockgz.program.main import closing, confirm, print_problems
from blockgz.program.options import Option as Single
from blockgz.program.options import OptionSet, Parsed
from blockgz.program.plan_options import plan_options
from blockgz.program.report_options import sign_key_option
from blockgz.program.tables import bytes_text, print_table
from blockgz.record_filter import Condition, KeyIn, Pattern, ValueMatches
from blockgz.signing import check_signature, signature_of, signed
from blockgz.store.opening import default_buffer_root, open_existing_store
from blockgz.store.retry import bounded_backoff
from blockgz.store.s3_settings import S3Settings
from blockgz.store.writer import ToolStore
from blockgz.units import timestamp_text
from index_format.errors import BlockgzError
from index_format.keys import PartitionKeys

SHOWN_RANGES = 4
NOT_YET = "not erased yet"


def _wanted(
    keys: Sequence[str],
    keys_file: Path | None,
    headers: tuple[Condition, ...],
    grep: str | None,
    offsets: OffsetRanges | None,
) -> Wanted | None:
    """Which records; None where nothing says so. Raises UsageError where both offsets and something else do."""
    chosen = {os.fsencode(key) for key in keys}
    if keys_file is not None:
        content = keys_file.read_bytes()
        if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            raise UsageError(f"{keys_file} is in UTF-16", remedy="write it in UTF-8, or in the bytes of the keys")
        chosen |= {line for line in content.removeprefix(BOM_UTF8).splitlines() if line}
        if not chosen:
            raise UsageError(f"{keys_file} holds no key", remedy="write one key a line")
    conditions = [*([KeyIn(sorted(chosen))] if chosen else []), *headers]
    if grep == "":
        raise _unclear("every value holds the empty text that --grep names")
    conditions += [ValueMatches(Pattern(grep))] if grep is not None else []
    if conditions and offsets is not None:
        raise _unclear("offsets say so, and something else as well")
    if offsets is not None:
        return AtOffsets(offsets)
    return Matching.all_of(*conditions) if conditions else None


def _unclear(why: str) -> UsageError:
    return UsageError(
        "it is not clear which records to erase",
        why=why,
        remedy="use --key, --keys-file, --header and --grep, or --offsets",
    )


wanted_options = OptionSet(
    "wanted",
    _wanted,
    Single(
        "--key",
        "keys",
        multiple=True,
        metavar="TEXT",
        help="Only records with this key; repeat it to allow more keys.",
    ),
    Single(
        "--keys-file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="Only records with one of the keys in this file, one a line.",
    ),
    header_option,
    grep_option,
    Single(
        "--offsets",
        type=Parsed("offsets", lambda text: parse_offsets([text])),
        metavar="RANGES",
        help="Only records at these offsets: 17, 17..30 (without 30), or several with commas.",
    ),
)
"""Passes `wanted: Wanted | None`."""


@click.command(
    "erase",
    epilog=closing(
        "archiver erase orders --key 4711 -a s3://backup/kafka --dry-run",
        "archiver erase orders eu-orders --keys-file keys.txt -a ./archive --report erased.json --yes",
        "archiver erase orders:3 --offsets 1700,1800..1850 -a ./archive",
        "archiver erase clicks --header user=4711 --report erased.json --sign-key key.pem -a ./archive",
        "archiver erase --status erased.json -a s3://backup/kafka",
        "archiver erase --status erased.json --report completed.json --sign-key key.pem -a s3://backup/kafka",
    ),
)
@click.argument("places", nargs=-1, metavar="[TOPIC[~N][:P[,P-P]]...]")
@store_options(writing_s3_options)
@wanted_options
@click.option("--report", type=click.Path(path_type=Path), help="Write what was erased to this new file, as JSON.")
@click.option(
    "--status",
    "finished",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Show whether the erase of that report is complete, and change nothing; --report and --sign-key keep that.",
)
@click.option(
    "--verify-key",
    type=click.Path(path_type=Path),
    envvar="BLOCKGZ_REPORT_KEY",
    metavar="PEM",
    help="With --status: the public key that must have signed that report. [that of --sign-key]",
)
@rewrite_keys_options
@sign_key_option
@max_block_option
@buffer_options
@plan_options
def erase(
    *,
    places: tuple[str, ...],
    archive: str,
    s3: S3Settings,
    wanted: Wanted | None,
    report: Path | None,
    finished: Path | None,
    verify_key: Path | None,
    sign_key: Path | None,
    rewrite_keys: RewriteKeys,
    max_block_bytes: int,
    buffer_dir: Path | None,
    buffer_bytes: int,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Erase records by key, header, value or offset, and report when no object in the archive contains them.

    With several of --key, --header and --grep, a record must match all of them. TOPIC means all its incarnations.
    Chunks that hold such records are written again without them; for encrypted chunks, give --keys or --encrypt. Safe
    beside archivers: one that is at work claims its partitions again. What was replaced stays for readers that are at
    work, until archiver gc deletes it after its grace period; --status tells whether that has happened. Prints the
    plan, without content, and asks first.
    """
    store = open_existing_store(archive, s3)
    if finished is not None:
        if places or wanted is not None:
            raise UsageError("--status takes no topics and no keys", remedy="the report names what was erased")
        _check_report(report, sign_key)
        return _show_status(store, finished, verify_key or sign_key, _Signed(report, sign_key), as_json=as_json)
    if wanted is None:
        raise _unclear("nothing says so")
    _check_report(report, sign_key)
    partitions = _partitions(store, places, by_offset=isinstance(wanted, AtOffsets))
    found, failed = _find(store, partitions, wanted, max_block_bytes, rewrite_keys)
    problems = [Problem.of(keys, error) for keys, error in failed]
    if not as_json:
        _print_plan(found, is_whole=not failed)
    book = _Book(store, archive, _Signed(report, sign_key), found, failed, dry_run=dry_run)
    if book.errors and not dry_run:
        records = sum(each.num_records for each in found)
        question = f"Erase {records:,} records of {len(book.errors):,} partitions for good?"
        confirm(question, undone="nothing was erased", is_agreed=yes)
        buffers = BufferFolder(buffer_dir or default_buffer_root(archive))
        try:
            book.write()
            limits = {"buffer_bytes": buffer_bytes, "max_block_bytes": max_block_bytes}
            problems += _erase(store, book, buffers, rewrite_keys, **limits)
        finally:
            buffers.close()
            book.write()
    else:
        book.write()
    return _finish(book.report(), problems, report, as_json=as_json)


class _Signed(NamedTuple):
    """A file for a report, and for its signature beside it, if either is wanted."""

    path: Path | None
    sign_key: Path | None

    def write(self, value: object) -> None:
        """Write the value as JSON, and sign that; raises UsageError if the file cannot be written."""
        if self.path is None:
            return
        body = msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
        try:
            replace_file(self.path, body)
            if self.sign_key is not None:
                write_private(signature_of(self.path), signed(body, self.sign_key))
            else:  # of an older content
                signature_of(self.path).unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(
                f"{self.path} cannot be written", why=error.strerror or str(error), remedy="name another file"
            ) from error


class _Book:
    """Keeps what is not erased yet, and the report of it in a file."""

    def __init__(
        self,
        store: ToolStore,
        archive: str,
        file: _Signed,
        found: Sequence[FoundRecords],
        failed: Sequence[tuple[PartitionKeys, BlockgzError]],
        *,
        dry_run: bool,
    ) -> None:
        """`found` is what there is to erase in each partition that was searched, `failed` why others were not."""
        self._store, self._archive, self._file, self._dry_run = store, archive, file, dry_run
        self._archive_id = archive_info(store, layout_of(store)).archive_id
        self.found = found
        self._not_searched = tuple(NotSearched.of(keys, error) for keys, error in failed)
        self.errors = {str(each): NOT_YET for each in found if each.num_records}
        """Why not all records of a partition are erased, by its name."""

    def report(self) -> EraseReport:
        """As it is now."""
        return EraseReport(
            archive=self._archive,
            archive_id=self._archive_id,
            at=round(self._store.clock() * 1000),
            dry_run=self._dry_run,
            partitions=tuple(ErasedPartition.of(each, self.errors.get(str(each))) for each in self.found),
            not_searched=self._not_searched,
            signed=self._file.sign_key is not None,
        )

    def write(self) -> None:
        """Write the report, if it is wanted: before anything is erased, and at the end."""
        self._file.write(self.report())


def _check_report(report: Path | None, sign_key: Path | None) -> None:
    if sign_key is not None:
        if report is None:
            raise UsageError("--sign-key has nothing to sign", remedy="add --report FILE")
        signed(b"", sign_key)
    if report is not None and report.exists() and not _may_be_replaced(report):
        raise UsageError(
            f"{report} exists already",
            why="it may be the report of another erase, which --status needs",
            remedy="name another file",
        )


def _may_be_replaced(report: Path) -> bool:
    """Return whether a file is the report of a dry run, or says that an erase is not complete yet."""
    try:
        found = msgspec.json.decode(report.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError):
        return False
    if found.get("format") == COMPLETION_FORMAT:
        return found.get("complete") is False
    return found.get("format") == ERASE_FORMAT and found.get("dry_run") is True


def _partitions(store: ToolStore, places: Sequence[str], *, by_offset: bool) -> list[PartitionKeys]:
    if not places:
        raise UsageError("no topic is named", remedy="name one or more: archiver erase orders --key 4711 -a …")
    chosen = [keys for place in places for keys in places_of(store, place, by_offset=by_offset)]
    return list({keys.marker: keys for keys in chosen}.values())


def _find(
    store: ToolStore,
    partitions: Sequence[PartitionKeys],
    wanted: Wanted,
    max_block_bytes: int,
    rewrite_keys: RewriteKeys,
) -> tuple[list[FoundRecords], list[tuple[PartitionKeys, BlockgzError]]]:
    """What there is to erase in each, and why the others could not be searched."""
    found, failed = list[FoundRecords](), list[tuple[PartitionKeys, BlockgzError]]()
    for keys in partitions:
        try:
            chain = read_chain(store, keys.layout, keys.folder, keys.partition)
            if chain is None:
                raise lost_marker(keys)
            found.append(find_records(store, chain, wanted, max_block_bytes, rewrite_keys.keyring))
        except BlockgzError as error:
            failed.append((keys, error))
    return found, failed


def _erase(
    store: ToolStore, book: _Book, buffers: BufferFolder, rewrite_keys: RewriteKeys, **limits: int
) -> list[Problem]:
    """Erase in one partition after another."""
    problems = list[Problem]()
    driver = Driver(store, NoLog(), bounded_backoff(store.url), lambda: True)
    for each in book.found:
        if not each.num_records:
            continue
        try:
            erase_in(store, each.keys, each.offsets, driver, buffers, rewrite_keys=rewrite_keys, **limits)
        except BlockgzError as error:
            book.errors[str(each)] = error.reason
            problems.append(Problem(str(each), error))
        else:
            del book.errors[str(each)]
    return problems


def _finish(value: EraseReport, problems: Sequence[Problem], report: Path | None, *, as_json: bool) -> int:
    """Prints the result; gives the exit code."""
    print_problems(problems)
    if as_json:
        shown = msgspec.to_builtins(value) | {"problems": [each.as_json for each in problems]}
        click.echo(msgspec.json.encode(shown).decode())
    elif not value.dry_run:
        if any(each.records for each in value.partitions):
            erased = sum(each.records for each in value.partitions if each.error is None)
            click.echo(f"erased {erased:,} record{'' if erased == 1 else 's'}")
        click.echo(
            "chunks that were replaced or pruned are there until archiver gc deletes them after its grace period; "
            + (
                f"archiver erase --status {report} tells when nothing holds such records"
                if report
                else "archiver gc --dry-run lists what is left"
            )
        )
    return PARTLY_FAILED if problems else 0


def _print_plan(found: Sequence[FoundRecords], *, is_whole: bool) -> None:
    rows = [
        (
            str(each.keys.folder),
            each.keys.partition,
            each.num_records,
            each.num_chunks,
            bytes_text(each.num_bytes),
            f"{each.blocks_read:,} of {each.blocks:,}",
            ranges_text(each.offsets),
        )
        for each in found
        if each.num_records
    ]
    if not rows:
        if is_whole:
            click.echo("no record to erase")
        return
    columns = ("topic", "partition", "records", "chunks", "size of chunks", "blocks read", "offsets")
    print_table(columns, rows, droppable=("blocks read", "size of chunks"))


def ranges_text(offsets: OffsetRanges) -> str:
    """The first few ranges, and how many more there are."""
    shown = [
        str(each.start) if len(each) == 1 else f"{each.start}..{each.stop}"
        for each, _ in zip(offsets, range(SHOWN_RANGES), strict=False)
    ]
    more = len(offsets) - len(shown)
    return ",".join(shown) + (f" and {more:,} more" if more else "")


def _show_status(store: ToolStore, path: Path, key: Path | None, file: _Signed, *, as_json: bool) -> int:
    """Print what is still there and write it to the file; return 0 once nothing is.

    The report must be signed by the key, if one is given.
    """
    body, report = read_report(path)
    if key is not None:
        check_signature(body, path, key)
    elif report.signed and not signature_of(path).exists():
        raise UsageError(
            f"{path} was signed, but {signature_of(path)} is missing", remedy="restore both files from a safe copy"
        )
    elif signature_of(path).exists():
        click.echo(f"note: {signature_of(path)} is not checked: add --verify-key PEM", err=True)
    archive_id = archive_info(store, layout_of(store)).archive_id
    if report.archive_id != archive_id:
        raise UsageError(
            f"{path} is the report of another archive",
            why=f"its archive_id is {report.archive_id}, that of {store.url} is {archive_id}",
            remedy="check -a",
        )
    uploads = list(store.leftovers())
    seen, problems = list[tuple[ErasedPartition, Remains]](), list[Problem]()
    problems += [Problem(str(each), _not_searched(each)) for each in report.not_searched]
    for each in report.partitions:
        try:
            seen.append((each, remains_of(store, each, uploads)))
        except BlockgzError as error:
            problems.append(Problem(str(each), error))
    print_problems(problems)
    is_complete = not problems and all(remains.is_complete for _, remains in seen)
    at = round(store.clock() * 1000)
    value = {
        "format": COMPLETION_FORMAT,
        "version": 1,
        "archive": store.url,
        "archive_id": archive_id,
        "report_sha256": hashlib.sha256(body).hexdigest(),
        "report_at": report.at,
        "records": sum(each.records for each in report.partitions),
        "complete": is_complete,
        "at": at,
        "partitions": [status_object(*each) for each in seen],
        "problems": [each.as_json for each in problems],
    }
    file.write(value)
    if as_json:
        click.echo(msgspec.json.encode(value).decode())
    else:
        _print_status(seen, is_complete=is_complete, at=at)
    return 0 if is_complete else PARTLY_FAILED


def _not_searched(each: NotSearched) -> RewriteRefused:
    return RewriteRefused(
        "the erase did not search this partition",
        why=each.error,
        remedy="mend that, and run the same erase again with another --report",
    )


def status_object(erased: ErasedPartition, remains: Remains) -> dict[str, object]:
    """What `archiver erase --status --json` says of a partition."""
    return {
        "topic": erased.topic,
        "partition": erased.partition,
        "complete": remains.is_complete,
        "not_erased": [(each.start, each.stop) for each in remains.not_erased],
        "retired": remains.retired,
        "rewriting": remains.is_rewriting,
        "unreached": remains.unreached,
    }


def _print_status(seen: Sequence[tuple[ErasedPartition, Remains]], *, is_complete: bool, at: int) -> None:
    rows = [
        (
            erased.topic,
            erased.partition,
            erased.records,
            remains.not_erased.num_offsets,
            remains.retired,
            len(remains.unreached),
            "complete" if remains.is_complete else "not yet",
        )
        for erased, remains in seen
        if erased.records or not remains.is_complete
    ]
    columns = ("topic", "partition", "records", "not erased", "retired catalogs", "objects left", "state")
    if rows:
        print_table(columns, rows, droppable=("retired catalogs",))
    if is_complete:
        click.echo(f"complete at {timestamp_text(at)}: nothing in the archive holds the records any more")
        return
    if any(len(remains.not_erased) for _, remains in seen):
        click.echo("some records are not erased: run the same archiver erase again, with another --report")
    if any(remains.retired or remains.is_rewriting or remains.unreached for _, remains in seen):
        click.echo("not complete yet: run archiver gc, now and once the grace period of what is retired is over")
