"""`replayer drill`."""

import asyncio
import gc
import random
import time
from dataclasses import replace
from typing import Any

import click
import msgspec

from blockgz.archive.archive import ArchivePlace
from blockgz.archive.positions import Rule
from blockgz.errors import PARTLY_FAILED, Verdict
from blockgz.process import run_async, share_heaps
from blockgz.program.main import closing, confirm, ended_code
from blockgz.program.options import Argument, Option, OptionSet, Parsed, TimeOption, kafka_options, yes_option
from blockgz.program.progress import record_progress
from blockgz.program.terminal import print_each, print_table
from blockgz.topic_patterns import DRILLS
from blockgz.units import bytes_text, wall_clock
from index_format.keys import check_topic
from replayer.cli.options.options import archive_options, json_option, open_archive
from replayer.cli.options.restore_options import Running, factor_option, report_options, running_options, time_of
from replayer.cli.options.selection_options import at_rule_option, with_choice
from replayer.cli.options.verify_options import parse_share
from replayer.cli.replay import duration_text
from replayer.cli.restore import ending_signals, print_outcome, refuse_undecided, surroundings
from replayer.replay.jobs.control import held, lock_folder
from replayer.restore.document import RestoreFolder
from replayer.restore.drill import Drill, drill_document, removed, sampled
from replayer.restore.planning import found_topics, looked_over
from replayer.restore.running import RestoreRun
from replayer.verify.report import ReportFiles


def _drill(
    topics: tuple[str, ...],
    at: int | None,
    at_rule: Rule | None,
    share: float,
    prefix: str,
    seed: int | None,
    replication_factor: int | None,
) -> Drill:
    check_topic(prefix + "a")
    if at is None:
        # Records that are stamped later than now have a clock that is ahead, and belong to it.
        at, at_rule = wall_clock(), at_rule or "majority"
    seed = random.randrange(2**32) if seed is None else seed
    return Drill(at, topics, prefix, share, seed, replication_factor, at_rule)


drill_options = OptionSet(
    "drill",
    _drill,
    Argument("topics", metavar="[TOPIC...]", nargs=-1),
    Option(
        "--at",
        cls=TimeOption,
        envvar="BLOCKGZ_DRILL_AT",
        metavar="TIME",
        parse=time_of,
        help="As of this time; now if not given.",
    ),
    at_rule_option,
    Option(
        "--sample",
        "share",
        envvar="BLOCKGZ_DRILL_SAMPLE",
        type=Parsed("share", parse_share),
        default="5%",
        metavar="PERCENT",
        help="Restore this share of the partitions, chosen at random; at least one.",
    ),
    Option(
        "--prefix", envvar="BLOCKGZ_DRILL_PREFIX", default=DRILLS, metavar="TEXT", help="What the new names begin with."
    ),
    Option("--seed", type=click.IntRange(0, 2**32 - 1), metavar="N", help="Choose the partitions of an earlier drill."),
    factor_option,
)


@click.command(
    "drill",
    epilog=closing(
        "replayer drill --sample 5% --yes -b scratch:9092 -a s3://bucket/prefix",
        "replayer drill orders --sample 100% --report drill.json --yes -b scratch:9092 -a ./archive",
    ),
)
@drill_options
@running_options
@report_options
@yes_option
@json_option
@kafka_options(required=True)
@archive_options
def command(
    drill: Drill,
    running: Running,
    report_to: ReportFiles,
    yes: bool,
    as_json: bool,
    kafka: dict[str, str],
    archive: ArchivePlace,
) -> int:
    """Try a restore: restore a share of the partitions, prove it, and delete it again.

    The topics get other names. Tells how long a whole restore would take. Exits with 0 only if everything that was
    tried is proved and removed, and the archive lacks nothing that it ever held; with 3 otherwise. Recorded gaps are
    warnings. Made for cron.
    """
    share_heaps()
    gc.freeze()

    def run(rule: Rule | None) -> int:
        chosen = replace(drill, at_rule=rule or drill.at_rule)
        return run_async(_tried(chosen, running, report_to, kafka, archive, is_agreed=yes, as_json=as_json))

    return with_choice(run)


async def _tried(
    drill: Drill,
    running: Running,
    report_to: ReportFiles,
    kafka: dict[str, str],
    place: ArchivePlace,
    *,
    is_agreed: bool,
    as_json: bool,
) -> int:
    async with open_archive(place) as archive:
        around = surroundings(running, archive, kafka, place)
        whole = await looked_over(await found_topics(drill.plan, drill.wanted, around), drill.name, around)
        part = await looked_over(sampled(whole, drill.share, drill.seed), drill.name, around)
        if drill.at_rule is None:
            refuse_undecided(part)
        question = f"Create {len(part.restorable)} topics, write {part.records} records, and delete them again?"
        confirm(question, undone="nothing was tried", is_agreed=is_agreed)
        folder = RestoreFolder(around.jobs, drill.name)
        began = time.monotonic()
        with held(lock_folder(), drill.name), record_progress("trying", part.records * 2, as_json=as_json) as progress:
            told = (lambda _: None) if as_json else print_outcome
            run = RestoreRun(part, folder, around, running.workers, progress, told)
            with ending_signals(run) as signals:
                outcomes = await run.topics()
                seconds = time.monotonic() - began
                left = await asyncio.to_thread(removed, outcomes, folder, around)
    document = drill_document(drill, whole, part, outcomes, left, seconds)
    report_to.write(document)
    if as_json:
        click.echo(msgspec.json.encode(document))
    else:
        _print(document)
    return ended_code(PARTLY_FAILED if document["verdict"] is Verdict.FAILURE else 0, signals, is_done=not run.ending)


def _print(document: dict[str, Any]) -> None:
    rows = [
        (each["source"], each["target"], ",".join(map(str, each["partitions"])), each["records"], each["proof"] or "-")
        for each in document["topics"]
    ]
    print_table(("SOURCE", "TARGET", "PARTITIONS", "RECORDS", "PROOF"), rows, title=document["drill"])
    for each in document["topics"]:
        if each["error"] is not None:
            click.echo(f"FAILURE {each['source']}: {each['error']}")
    print_each("note: ", document["notes"])
    print_each("WARNING ", document["warnings"])
    print_each("WARNING recorded gap: ", document["gaps"])
    print_each("FAILURE ", (*document["lacks"], *document["skipped"]))
    print_each("FAILURE not removed: ", document["not_removed"])
    whole = document["whole"]
    takes = "" if whole["seconds"] is None else f" would take about {duration_text(whole['seconds'])} at this rate"
    click.echo(
        f"{document['partitions']} of {document['partitions_of']} partitions tried in "
        f"{duration_text(document['seconds'])} (seed {document['seed']}); {whole['topics']} topics with "
        f"{whole['records']} records, {bytes_text(whole['bytes'])},{takes} with proof"
    )
    click.echo(document["verdict"])
