import pytest

from index_format.records import Record, batch_from_records
from replayer.errors import UsageError
from replayer.formatting import envelope, template_printer

RECORD = Record(17, 1000, 0, b"k", b"v\x00\xff", (("a", b"1"), ("b", None), ("c", b"")))
NULLS = Record(18, -1, -1, None, None, ())


def printed(template: str, record: Record = RECORD) -> bytes:
    return template_printer(template)("orders", 3, batch_from_records([record]))


@pytest.mark.parametrize(
    ("template", "output"),
    [
        ("%t %p %o %T", b"orders 3 17 1000"),
        ("%k=%s", b"k=v\x00\xff"),
        ("%K %S", b"1 3"),
        ("%R", b"\x00\x00\x00\x03"),
        ("%h", b"a=1,b=NULL,c="),
        ("100%%\\n", b"100%\n"),
        ("\\t\\r\\\\\\x41\\102é", b"\t\r\\AB" + "é".encode()),
        ("", b""),
        ("%%o", b"%o"),
    ],
)
def test_kcats_tokens(template: str, output: bytes) -> None:
    assert printed(template) == output


def test_nulls_print_as_nothing_with_length_minus_one() -> None:
    assert printed("[%k][%s][%h] %K %S %T", NULLS) == b"[][][] -1 -1 -1"
    assert printed("%R", NULLS) == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("template", ["%", "%x", "a%"])
def test_unknown_tokens_are_refused(template: str) -> None:
    with pytest.raises(UsageError, match="is not a format token"):
        template_printer(template)


def test_the_envelope_of_a_record_without_timestamp() -> None:
    assert envelope("orders", 3, NULLS) == {
        "topic": "orders",
        "partition": 3,
        "offset": 18,
        "broker": -1,
        "key": None,
        "payload": None,
    }
    assert envelope("orders", 3, RECORD)["payload"] == "v\x00\ufffd"
