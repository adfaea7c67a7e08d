import pytest

from blockgz.archive.positions import AT_END, AtOffset, AtTime, BeforeEnd, Ends
from blockgz.archive.request import parse_offset_file
from blockgz.errors import UsageError

EXPORTED = b"orders,0,17\norders,1,0\nother,0,5\n"
"""As `kafka-consumer-groups --reset-offsets --export` prints it."""


def of_orders(body: bytes) -> dict[int, Ends]:
    return dict(parse_offset_file(body, "orders", now=1_000_000))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (EXPORTED, {0: (AtOffset(17), None), 1: (AtOffset(0), None)}),
        (b'\xef\xbb\xbf"group-a","orders",0,17\r\n\r\n', {0: (AtOffset(17), None)}),
        (b"orders, 0 ,-5\n", {0: (BeforeEnd(5), None)}),
        (b"orders,0,@1760000000\n", {0: (AtTime(1760000000000), None)}),
        (b"Topic,partition\n", None),
        (b"topic,partition,to\norders,3,latest\n", {3: (None, AT_END)}),
        (b"Topic,Partition,To\norders,3,7\n", {3: (None, AtOffset(7))}),
        (b"partition,topic,from,to\n0,orders,17,\n1,orders,,5\n", {0: (AtOffset(17), None), 1: (None, AtOffset(5))}),
        (
            b'{"version":1,"partitions":[{"topic":"orders","partition":1,"offset":9},{"topic":"x","partition":1}]}',
            {1: (AtOffset(9), None)},
        ),
        (b'[{"topic":"orders","partition":0,"from":"-1h","to":7}]', {0: (AtTime(-2_600_000), AtOffset(7))}),
        (b"", None),
        (b"other,0,5\n", None),
        (b"orders,0\n", None),
        (b"orders,x,5\n", None),
        (b"orders,0,yesterday\n", None),
        (b"orders,0,5\norders,0,6\n", None),
        (b"topic,partition,from\norders,0\n", None),
        (b'{"partitions":[{"topic":"orders","partition":0,"form":1}]}', None),
        (b'{"partitions":', None),
        (b"\xff,0,1\n", None),
    ],
)
def test_forms(body: bytes, expected: dict[int, Ends] | None) -> None:
    if expected is None:
        with pytest.raises(UsageError):
            of_orders(body)
    else:
        assert of_orders(body) == expected
