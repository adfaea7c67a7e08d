"""What a job's folder keeps of a request is enough to do the same to records again."""

import msgspec
import pytest

from blockgz.archive.archive import parse_topic
from blockgz.archive.request import SelectionRequest
from blockgz.record_filter import HasHeader, HeaderIs, KeyIn, Not, Pattern, RecordFilter, ValueMatches
from replayer.errors import ReplayRefused
from replayer.replay.pipeline import Pipeline, make_router, parse_routing
from replayer.replay.request import ReplayRequest, Shape, asked_of, shape_asked
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
SHAPES = [
    Shape(),
    Shape(routing=parse_routing("by-key"), timestamps=parse_timestamps("shift=-90m"), tombstones="drop"),
    Shape(routing=parse_routing("0:2,1-3:0"), timestamps=parse_timestamps("now"), provenance=True),
    Shape(
        routing=parse_routing("3"),
        strip_headers=("a",),
        add_headers=(AddHeader("k", b"\xfe"),),
        chain=build_chain(CHAIN),
        on_transform_error="skip",
    ),
]


def pipeline_of(shape: Shape) -> Pipeline:
    stages = tuple(make_stages(shape, "orders", "copy", LeftOut()))
    return Pipeline(stages, make_router(shape.routing, "copy", 4))


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_kept_makes_the_same_pipeline_and_filter(shape: Shape) -> None:
    wanted = RecordFilter(1, 2, CONDITIONS)
    request = ReplayRequest(parse_topic("orders"), "copy", SelectionRequest(filter=wanted), shape)
    kept = msgspec.json.decode(msgspec.json.encode(asked_of(request, pipeline_of(shape), 4)))
    again, record_filter = shape_asked(kept, "j")
    assert pipeline_of(again).fingerprint == pipeline_of(shape).fingerprint == kept["pipeline"]
    assert record_filter == wanted


@pytest.mark.parametrize("kept", [{}, {"pipeline": "keep"}])
def test_a_folder_that_does_not_tell_is_refused(kept: dict[str, str]) -> None:
    with pytest.raises(ReplayRefused, match="what job j did to records is not known"):
        shape_asked(kept, "j")
