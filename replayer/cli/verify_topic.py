"""`replayer verify --against-topic` and `--job`, which need a Kafka client."""

import gc
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from operator import attrgetter

import click
import msgspec

from blockgz.archive.archive import ArchivePlace, TopicPartitions
from blockgz.archive.selection import SKIPS, DamagePolicies, Positions, Reading, Selection
from blockgz.errors import PARTLY_FAILED, Verdict
from blockgz.process import run_async
from blockgz.program.progress import record_progress
from blockgz.program.terminal import print_each, print_table
from index_format.records import Record
from replayer.cli.options.options import open_archive
from replayer.cli.options.selection_options import print_cuts
from replayer.cli.report import naming_what_is_left
from replayer.replay.jobs.folder import open_jobs
from replayer.replay.plan import describe_source
from replayer.replay.proof import JobProof, proof_document, prove_job
from replayer.replay.request import Surroundings
from replayer.verify.comparison import Progress, compare_with_topic
from replayer.verify.report import ComparisonReport, Relation, ReportFiles, comparison_document, record_document

SHOWN_CHARACTERS = 200


def verify_against(
    topic: TopicPartitions,
    against: str,
    positions: Positions,
    kafka: dict[str, str],
    archive: ArchivePlace,
    report_to: ReportFiles,
    *,
    as_json: bool,
) -> int:
    """Compare, print the report, and return the exit code."""
    gc.freeze()
    report = run_async(_compare(topic, against, positions, kafka, archive, as_json))
    document = comparison_document(
        report, str(archive.address), topic.topic, against, without_content=report_to.without_content
    )
    if as_json:
        click.echo(msgspec.json.encode(document))
    else:
        _print(report, topic.topic, against, without_content=report_to.without_content)
    report_to.write(document)
    return PARTLY_FAILED if report.verdict is Verdict.FAILURE else 0


async def _compare(
    topic: TopicPartitions,
    against: str,
    positions: Positions,
    kafka: dict[str, str],
    options: ArchivePlace,
    as_json: bool,
) -> ComparisonReport:
    @asynccontextmanager
    async def watched(selections: Sequence[Selection], report: ComparisonReport) -> AsyncIterator[Progress]:
        print_cuts(selections, copies=False)
        # Damage is reported where the comparison comes to it.
        reading = Reading(on_damage=DamagePolicies(SKIPS).of)
        total = sum([(await describe_source(selection, reading)).records for selection in selections])
        names = [f"{each.partition.topic}:{each.partition.partition}" for each in selections]
        with (
            naming_what_is_left(names, lambda: len(report.partitions)),
            record_progress("comparing", total, as_json=as_json) as advance,
        ):
            yield advance

    async with open_archive(options) as archive:
        return await compare_with_topic(archive, topic, against, kafka, positions, watched)


def _print(report: ComparisonReport, topic: str, against: str, *, without_content: bool) -> None:
    columns = ("PARTITION", "VERDICT", "EQUAL", "ARCHIVED", "FOUND", "DIFFERENT", "MISSING", "EXTRA")
    figures = attrgetter("partition", "verdict.value", "records", "archived", "found", "differing", "missing", "extra")
    rows = [figures(each) for each in report.partitions]
    what = "the topic that was archived" if report.relation is Relation.SOURCE else "a copy"
    print_table(columns, rows, droppable=("EQUAL",), title=f"archive of {topic} against topic {against}, {what}")
    for each in report.partitions:
        for excused in each.excused:
            click.echo(f"WARNING {topic}:{each.partition} [{excused.start}..{excused.end}): {excused.reason}")
        for start, end, reason in each.lost:
            click.echo(f"FAILURE {topic}:{each.partition} [{start}..{end}): the archive cannot read them: {reason}")
        for name, count, runs in (
            ("missing", each.missing, each.missing_offsets),
            ("extra", each.extra, each.extra_offsets),
        ):
            if count:
                where = ", ".join(f"[{start}..{end})" for start, end in runs)
                click.echo(f"FAILURE partition {each.partition}: {count} records {name} at offsets {where}")
        if each.not_archived_yet is not None:
            new = "[{}..{})".format(*each.not_archived_yet)
            click.echo(f"partition {each.partition}: offsets {new} were written since then and are not archived yet")
        if each.zero_timestamps:
            click.echo(f"partition {each.partition}: {each.zero_timestamps} records with timestamp 0 arrived with 1")
        difference = each.first_difference
        if difference is not None:
            fields = f" in {', '.join(difference.fields)}" if difference.fields else ""
            click.echo(f"FAILURE partition {each.partition}: first difference{fields}")
            click.echo(f"  archive: {_shown(difference.archived, without_content)}")
            click.echo(f"  topic:   {_shown(difference.found, without_content)}")
    print_each("WARNING ", report.warnings)
    click.echo(report.verdict.value)


def _shown(record: Record | None, without_content: bool) -> str:
    if record is None:
        return "no such record"
    text = msgspec.json.encode(record_document(record, without_content=without_content)).decode()
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}… ({len(text)} characters)"


def verify_job(name: str, jobs: str | None, kafka: dict[str, str], archive: ArchivePlace, *, as_json: bool) -> int:
    """Prove the job, print the findings, and return the exit code."""
    proof = run_async(_prove(name, jobs, kafka, archive, as_json=as_json))
    if as_json:
        click.echo(msgspec.json.encode(proof_document(proof)))
    else:
        _print_proof(proof)
    return PARTLY_FAILED if proof.verdict is Verdict.FAILURE else 0


async def _prove(
    name: str, jobs: str | None, kafka: dict[str, str], options: ArchivePlace, *, as_json: bool
) -> JobProof:
    @contextmanager
    def watched(total: int) -> Iterator[Callable[[int], None]]:
        with record_progress("proving", total, as_json=as_json) as advance:
            yield lambda records: advance(records, 0)

    async with open_archive(options) as archive:
        return await prove_job(name, Surroundings(archive, kafka, open_jobs(jobs, options)), watched)


def _print_proof(proof: JobProof) -> None:
    columns = ("TARGET", "RUNS", "RECORDS", "DIFFERING", "MISSING", "FOREIGN", "SENT TWICE")
    rows = [(e.lane, e.runs, e.records, e.differing, e.missing, e.foreign, e.sent_twice) for e in proof.lanes]
    print_table(columns, rows, title=f"{proof.request.folder} -> {proof.request.target}, job {proof.request.job}")
    for lane in proof.lanes:
        print_each("FAILURE ", lane.faults)
        if lane.sent_twice:
            click.echo(f"WARNING partition {lane.lane}: {lane.sent_twice} records were sent twice")
        if lane.gone:
            click.echo(
                f"WARNING partition {lane.lane}: {lane.gone} records were pruned or erased from the archive since: "
                "what was sent of them cannot be compared"
            )
    print_each("WARNING ", proof.warnings)
    if proof.not_compared:
        click.echo(f"{proof.not_compared} records were counted and not compared")
    click.echo(proof.verdict)
