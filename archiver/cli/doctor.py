"""`archiver doctor`."""

import sys

import click
import orjson
from rich.console import Console
from rich.table import Table

from archiver.cli.config_options import config_options_for_any_topic
from archiver.config.resolution import Resolved
from archiver.doctor import examine
from archiver.doctor.findings import Finding, Verdict, worst
from blockgz_runtime.program.main import closing

FAILED = 1
PIPE_WIDTH = 1000
COLORS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


@click.command(
    epilog=closing(
        "archiver doctor orders -b localhost:9092 -a s3://backup/kafka", "archiver doctor -C archiver.yaml --json"
    )
)
@config_options_for_any_topic
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(*, resolved: Resolved, as_json: bool) -> int:
    """Check broker, permissions, topics, store and this machine for a run with the same settings.

    Each check is ok, warn or fail, and says what to do. Archives nothing; the store is probed with scratch objects.
    Exit code 1: a check failed.
    """
    findings = list(examine(resolved.config))
    verdict = worst(findings)
    if as_json:
        click.echo(orjson.dumps(result_object(findings)).decode())
    else:
        _print(findings)
    return FAILED if verdict is Verdict.FAIL else 0


def result_object(findings: list[Finding]) -> dict[str, object]:
    """The JSON contract of `archiver doctor --json`."""
    return {
        "verdict": worst(findings).value,
        "findings": [
            {"check": each.check, "verdict": each.verdict.value, "detail": each.detail, "remedy": each.remedy}
            for each in findings
        ],
    }


def _print(findings: list[Finding]) -> None:
    table = Table("check", "", "found", "do", box=None, pad_edge=False)
    for finding in findings:
        mark = f"[{COLORS[finding.verdict]}]{finding.verdict.value}[/]"
        table.add_row(finding.check, mark, _plain(finding.detail), _plain(finding.remedy))
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    Console(width=width, highlight=False, emoji=False).print(table)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
