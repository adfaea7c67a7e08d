"""Errors as answers: what happened, why, and what to do, with the status that each exit code means."""

import sys
import traceback
from collections.abc import Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from blockgz import errors
from blockgz.errors import BlockgzError, masked_urls

# The status of each exit code; 410 is damage: what was requested can no longer be read.
STATUS_OF_CODE = {errors.USAGE: 400, errors.PARTLY_FAILED: 410, 4: 404, 10: 503, 11: 409, 12: 502, errors.FAILED: 502}
MOST_PROBLEMS = 5
MAX_BODY_BYTES = 256 * 1024
# The messages of requests that no route answers, by status.
WORDS = {
    404: ("nothing is here", "no page and no operation has this address", "see /api"),
    405: ("this cannot be done here", "the operation at this address takes another method", "see /api"),
    413: ("the request is too large", f"it has more than {MAX_BODY_BYTES} bytes", "request less at once"),
}

Failure = dict[str, Any]


class CutsInDoubt(errors.CutUndecided):
    """A replay ends as of a time, and a person has to choose by which rule; `cuts` are as in its plan."""

    def __init__(self, at: str, cuts: Sequence[dict[str, Any]]) -> None:
        cut = cuts[0]
        super().__init__(
            f"it is not certain which records of {len(cuts)} partitions are from before {at}",
            why=f"partition {cut['partition']}: {cut['doubt']}; by majority it ends before offset {cut['majority']}, "
            f"by Kafka's rule before {cut['first']}",
            remedy="look at the records around both offsets, and repeat the request with at_rule majority or first",
        )
        self.cuts = cuts


def status_of(error: BlockgzError) -> int:
    if isinstance(error, errors.StoreUnavailable | errors.BrokerUnreachable | errors.PartitionUnavailable):
        return 503
    if isinstance(error, CutsInDoubt):
        return 409
    return STATUS_OF_CODE.get(errors.exit_code(error), 502)


def failure_of(error: BlockgzError) -> Failure:
    """Return the body of an answer: passwords in URLs are masked."""
    told = {"error": error.what, "why": error.why, "do": error.remedy}
    failure: Failure = {name: masked_urls(" ".join((text or "").split())) for name, text in told.items()}
    return failure | ({"cuts": error.cuts} if isinstance(error, CutsInDoubt) else {})


def trouble_of(error: Exception | None) -> Failure | None:
    """Return the failure to show if the last refresh of an archive failed; None if it succeeded."""
    return None if error is None else told(error)[1]


def told(error: Exception) -> tuple[int, Failure]:
    """Return the status and the body of any error; what is a bug is logged, without what records hold."""
    match error:
        case BlockgzError():
            return status_of(error), failure_of(error)
        case RequestValidationError():
            return 400, _invalid(error.errors(), 1)
        case ValidationError():
            return 400, _invalid(error.errors(), 0)
        case HTTPException():
            what, why, do = WORDS.get(error.status_code, (str(error.detail), "", "see /api"))
            return error.status_code, {"error": what, "why": why, "do": do}
    frames = "".join(traceback.format_tb(error.__traceback__))
    print(f"a request failed by a bug: {type(error).__name__}\n{frames}", file=sys.stderr, flush=True)
    return 500, {"error": f"the request failed: {type(error).__name__}", "why": "this is a bug", "do": "report it"}


def _invalid(found: Sequence[Any], skipped: int) -> Failure:
    """Return the failure of an invalid request; the first `skipped` names of each place are left out."""
    problems = [
        f"{'.'.join(str(part) for part in each['loc'][skipped:]) or 'the body'}: {each['msg']}"
        for each in found[:MOST_PROBLEMS]
    ]
    return {"error": "the request is not valid", "why": "; ".join(problems), "do": "see /api"}
