"""Options of verifications: which chunks are checked, and where reports go."""

import random
import re
from collections.abc import Callable
from pathlib import Path

from blockgz.archive.positions import parse_time
from blockgz.program import options
from blockgz.units import wall_clock
from index_format.keys import parse_topic_folder
from replayer.cli.report import earlier_report
from replayer.verify.chunk_checks import ChunkChoice
from replayer.verify.report import ReportFiles


def parse_share(text: str) -> float:
    """Parse a percentage above 0 and at most 100 as a share of 1."""
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)%", text, re.ASCII)
    share = float(match[1]) / 100 if match else 0.0
    if not 0 < share <= 1:
        raise ValueError(f"{text!r} is not a share; write 5% or 0.5%")
    return share


def _choice(since: str | None, sample: float) -> ChunkChoice:
    oldest = None if since is None else parse_time(since, wall_clock(), options.option_zone()).timestamp
    return ChunkChoice(oldest, sample, random.randrange(2**32))


choice_options = options.OptionSet(
    "choice",
    _choice,
    options.Option(
        "--since",
        cls=options.TimeOption,
        envvar="BLOCKGZ_VERIFY_SINCE",
        metavar="TIME",
        help="Check only chunks with a record at or after this time, or this duration before now (-1d).",
    ),
    options.Option(
        "--sample",
        type=options.Parsed("share", parse_share),
        default="100%",
        metavar="PERCENT",
        help="Check only a random share of each partition's chunks, such as 5%; at least one chunk.",
    ),
)


def _topics(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        parse_topic_folder(name)
    return names


# Passes `expected: tuple[str, ...]`.
expect_option = options.Option(
    "--expect",
    "expected",
    parse=_topics,
    metavar="TOPIC",
    multiple=True,
    help="Report a FAILURE if the archive has nothing of this topic; may be repeated.",
)


def report_option(text: str, parse: Callable[[tuple[Path, ...]], tuple[Path, ...]] | None = None) -> options.Option:
    """Add --report with that help text; passes `paths: tuple[Path, ...]`."""
    path = options.LocalPath(path_type=Path)
    return options.Option("--report", "paths", multiple=True, type=path, parse=parse, metavar="FILE", help=text)


report_options = options.OptionSet(
    "report_to",
    ReportFiles,
    report_option("Also write the findings to a .json or .html file; may be repeated."),
    options.sign_key_option,
    options.Option(
        "--no-content",
        "without_content",
        is_flag=True,
        help="Leave keys, values and headers out of what is printed and out of the reports.",
    ),
)

earlier_options = options.OptionSet(
    "earlier",
    earlier_report,
    options.Option(
        "--since-report",
        type=options.LocalPath(path_type=Path),
        metavar="FILE",
        help="Compare with an earlier .json report: everything in it must still be there, unchanged.",
    ),
    options.report_key_option("--key", text="With --since-report: the signer's public key."),
)
