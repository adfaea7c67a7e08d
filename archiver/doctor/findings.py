"""What a check finds, as values."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from blockgz.errors import AccessDenied
from index_format.errors import BlockgzError, masked_urls

SHOWN = 20


class Verdict(StrEnum):
    """How serious a finding is, from harmless to serious."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report, and of its JSON; `remedy` is empty where nothing is to be done."""

    check: str
    verdict: Verdict
    detail: str
    remedy: str = ""
    denied: bool = False
    """Whether credentials or permissions are what is wrong."""


def worst(findings: Sequence[Finding]) -> Verdict:
    """The most serious verdict."""
    order = list(Verdict)
    return max((finding.verdict for finding in findings), key=order.index, default=Verdict.OK)


def failed(check: str, error: BlockgzError) -> Finding:
    """A check that met one of our errors."""
    detail = f"{error.what}: {error.why}" if error.why else error.what
    return Finding(check, Verdict.FAIL, one_line(detail), one_line(error.remedy), isinstance(error, AccessDenied))


def carefully(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """What a check finds; one that fails is a finding itself."""
    try:
        yield from check()
    except BlockgzError as error:
        yield failed(name, error)
    except Exception as error:  # whatever it is, the other checks are worth making
        yield Finding(name, Verdict.WARN, f"could not be checked: {type(error).__name__}: {one_line(str(error))}")


def one_line(text: str) -> str:
    """Text of a library with its line breaks folded, and without the passwords of URLs."""
    return masked_urls(" ".join(text.split()))
