"""Options that choose records by what they hold."""

from blockgz.program.options import Option
from blockgz.record_filter import header_condition

header_option = Option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Only records with this header; repeat it to require more headers.",
    parse=lambda texts: tuple(map(header_condition, texts)),
)
"""Passes `headers: tuple[Condition, ...]`."""

grep_option = Option("--grep", metavar="REGEX", help="Only records whose value matches (RE2 syntax).")
"""Passes `grep: str | None`."""
