"""`archiver erase`."""

import os
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from archiver.cli.planned import buffer_options, carry_out, rewrite_keys_options
from archiver.maintain.erase import (
    AtOffsets,
    Matching,
    PlannedErase,
    RecordChoice,
    ReportFile,
    parse_offsets,
    places_of,
)
from archiver.maintain.erase_status import EraseStatus
from archiver.maintain.rewrite.chunks import OffsetRanges, RewriteKeys
from blockgz.errors import PARTLY_FAILED, UsageError
from blockgz.program import options
from blockgz.program.archive_options import max_block_option, store_options, writing_s3_options
from blockgz.program.main import closing, print_problems
from blockgz.program.terminal import print_table
from blockgz.record_filter import Condition, KeyIn, Pattern, ValueMatches
from blockgz.signing import signature_of
from blockgz.store.address import S3Settings
from blockgz.store.opening import default_buffer_root, open_existing_store
from blockgz.store.writer import ToolStore


def _make_wanted(
    keys: Sequence[str],
    keys_file: Path | None,
    headers: tuple[Condition, ...],
    grep: str | None,
    offsets: OffsetRanges | None,
) -> RecordChoice | None:
    """Return the choice of records, or None. Raises UsageError for offsets together with another choice."""
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


# Passes `wanted: RecordChoice | None`.
wanted_options = options.OptionSet(
    "wanted",
    _make_wanted,
    options.Option(
        "--key", "keys", multiple=True, metavar="TEXT", help="Only records with this key; repeat it to allow more keys."
    ),
    options.Option(
        "--keys-file",
        type=options.LocalPath(path_type=Path, exists=True, dir_okay=False),
        help="Only records with one of the keys in this file, one a line.",
    ),
    options.header_option,
    options.grep_option,
    options.Option(
        "--offsets",
        type=options.Parsed("offsets", lambda text: parse_offsets([text])),
        metavar="RANGES",
        help="Only records at these offsets: 17, 17..30 (without 30), or several with commas.",
    ),
)


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
@click.option(
    "--report", type=options.LocalPath(path_type=Path), help="Write what was erased to this new file, as JSON."
)
@click.option(
    "--status",
    "finished",
    type=options.LocalPath(path_type=Path, exists=True, dir_okay=False),
    help="Show whether the erase of that report is complete, and change nothing; --report and --sign-key keep that.",
)
@options.report_key_option(
    "--verify-key", text="With --status: the public key that must have signed that report. [that of --sign-key]"
)
@rewrite_keys_options
@options.sign_key_option
@max_block_option
@buffer_options
@options.plan_options
def erase(
    *,
    places: tuple[str, ...],
    archive: str,
    s3: S3Settings,
    wanted: RecordChoice | None,
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
    Chunks that hold such records are rewritten without them; for encrypted chunks, give --keys or --encrypt. Safe
    while archivers run: a running one claims its partitions again. What was replaced stays for current readers, until
    archiver gc deletes it after its grace period; --status shows whether that has happened. Prints the plan, without
    content, and asks first.
    """
    store, file = open_existing_store(archive, s3), ReportFile(report, sign_key)
    if finished is not None:
        if places or wanted is not None:
            raise UsageError("--status takes no topics and no keys", remedy="the report names what was erased")
        file.check()
        return _show_status(store, finished, verify_key or sign_key, file, as_json=as_json)
    if wanted is None:
        raise _unclear("no selector was given")
    if not places:
        raise UsageError("no topic is named", remedy="name one or more: archiver erase orders --key 4711 -a …")
    chosen = [keys for place in places for keys in places_of(store, place, by_offset=isinstance(wanted, AtOffsets))]
    command = PlannedErase(
        store,
        archive,
        list({keys.marker: keys for keys in chosen}.values()),
        wanted,
        file,
        buffer_dir or default_buffer_root(archive),
        buffer_bytes=buffer_bytes,
        max_block_bytes=max_block_bytes,
        rewrite_keys=rewrite_keys,
    )
    if dry_run or command.question is None:
        command.write_report(dry_run=dry_run)
    return carry_out(command, archive, dry_run=dry_run, yes=yes, as_json=as_json)


def _show_status(store: ToolStore, path: Path, key: Path | None, file: ReportFile, *, as_json: bool) -> int:
    """Print how far an erase is, and write it to the file; return 0 if the erase is complete."""
    status = EraseStatus(store, path, key)
    if status.is_signature_unchecked:
        click.echo(f"note: {signature_of(path)} is not checked: add --verify-key PEM", err=True)
    print_problems(status.problems)
    file.write(status.as_json())
    if as_json:
        click.echo(msgspec.json.encode(status.as_json()).decode())
    else:
        if rows := status.rows():
            print_table(status.columns, rows, droppable=status.droppable)
        for line in status.summary():
            click.echo(line)
    return 0 if status.is_complete else PARTLY_FAILED
