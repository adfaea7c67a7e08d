"""What a job's folder keeps of a request is enough to do the same to records again."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from blockgz.archive.archive import parse_topic
from blockgz.archive.request import SelectionRequest
from blockgz.record_filter import HasHeader, HeaderIs, KeyIn, Not, Pattern, RecordFilter, ValueMatches
from replayer.errors import ReplayRefused
from replayer.replay.pipeline import Pipeline, parse_routing
from replayer.replay.request import ReplayRequest, asked_of, kept_request
from replayer.replay.stages import AddHeader, LeftOut, parse_timestamps
from replayer.replay.target_topic import make_stages
from replayer.transforms.chain import build_chain

CHAIN = {"transforms": "b,a", "transforms.b.type": "HoistField$Value", "transforms.b.field": "x"}
CHAIN |= {"transforms.a.type": "InsertHeader", "transforms.a.header": "h", "transforms.a.value.literal": "v"}
CONDITIONS = (
    KeyIn((b"\xff", None)),
    ValueMatches(Pattern("a+", ignore_case=True)),
    Not(HasHeader("x")),
    HeaderIs("y", b"\x00"),
)


def request(**fields: Any) -> ReplayRequest:
    return ReplayRequest(parse_topic("orders"), "copy", **fields)


REQUESTS = [
    request(),
    request(routing=parse_routing("by-key"), timestamps=parse_timestamps("shift=-90m"), tombstones="drop"),
    request(routing=parse_routing("0:2,1-3:0"), timestamps=parse_timestamps("now"), provenance=True),
    request(
        routing=parse_routing("3"),
        strip_headers=("a",),
        add_headers=(AddHeader("k", b"\xfe"),),
        chain=build_chain(CHAIN),
        on_transform_error="skip",
    ),
]


def pipeline_of(asked: ReplayRequest) -> Pipeline:
    return Pipeline(tuple(make_stages(asked, LeftOut())), asked.routing.for_target("copy", 4))


@pytest.mark.parametrize("asked", REQUESTS)
def test_what_is_kept_makes_the_same_pipeline_and_filter(asked: ReplayRequest) -> None:
    wanted = RecordFilter(1, 2, CONDITIONS)
    asked = replace(asked, selection=SelectionRequest(filter=wanted))
    kept = msgspec.json.decode(msgspec.json.encode(asked_of(asked, pipeline_of(asked), 4)))
    again = kept_request(kept, "j", "orders~1", "copy")
    assert pipeline_of(again).fingerprint == pipeline_of(asked).fingerprint == kept["pipeline"]
    assert again.selection.filter == wanted


@pytest.mark.parametrize("kept", [{}, {"pipeline": "keep"}])
def test_a_folder_that_does_not_tell_is_refused(kept: dict[str, str]) -> None:
    with pytest.raises(ReplayRefused, match="what job j did to records is not known"):
        kept_request(kept, "j", "orders", "copy")
