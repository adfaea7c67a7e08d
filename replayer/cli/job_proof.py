"""`replayer verify --job`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import msgspec

from blockgz.archive.damage import Verdict
from blockgz.archive.place import ArchivePlace
from blockgz.errors import PARTLY_FAILED
from blockgz.process import run_async
from blockgz.program.progress import record_progress
from blockgz.program.tables import print_table
from replayer.cli.options.archive_options import open_archive
from replayer.cli.options.job_options import open_jobs
from replayer.replay.proof.job_proof import JobProof, proof_document, prove_job
from replayer.replay.recorded_job import kept_job


def verify_job(name: str, jobs: str | None, kafka: dict[str, str], archive: ArchivePlace, *, as_json: bool) -> int:
    """Proves the job, prints what was found, and gives the exit code."""
    proof = run_async(_prove(name, jobs, kafka, archive, as_json=as_json))
    if as_json:
        click.echo(msgspec.json.encode(proof_document(proof)))
    else:
        _print(proof)
    return PARTLY_FAILED if proof.verdict is Verdict.FAILURE else 0


async def _prove(
    name: str, jobs: str | None, kafka: dict[str, str], options: ArchivePlace, *, as_json: bool
) -> JobProof:
    @contextmanager
    def watched(total: int) -> Iterator[Callable[[int], None]]:
        with record_progress("proving", total, as_json=as_json) as advance:
            yield lambda records: advance(records, 0)

    kept, folder = kept_job(name, open_jobs(jobs, options))
    async with open_archive(options) as archive:
        return await prove_job(kept, folder, archive, kafka, watched)


def _print(proof: JobProof) -> None:
    columns = ("TARGET", "RUNS", "RECORDS", "DIFFERING", "MISSING", "FOREIGN", "SENT TWICE")
    rows = [(e.lane, e.runs, e.records, e.differing, e.missing, e.foreign, e.sent_twice) for e in proof.lanes]
    print_table(columns, rows, title=f"{proof.request.folder} -> {proof.request.target}, job {proof.request.job}")
    for lane in proof.lanes:
        for text in lane.faults:
            click.echo(f"FAILURE {text}")
        if lane.sent_twice:
            click.echo(f"WARNING partition {lane.lane}: {lane.sent_twice} records were sent twice")
        if lane.gone:
            click.echo(
                f"WARNING partition {lane.lane}: {lane.gone} records were pruned or erased from the archive since: "
                "what was sent of them cannot be compared"
            )
    for text in proof.warnings:
        click.echo(f"WARNING {text}")
    if proof.not_compared:
        click.echo(f"{proof.not_compared} records were counted and not compared")
    click.echo(proof.verdict)
