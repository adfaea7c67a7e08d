import json

import pytest

from blockgz.archive import formatting
from blockgz.archive.formatting import Printer, envelope, envelope_printer, json_printer, template_printer
from blockgz.errors import UsageError
from index_format.records import Record, batch_from_records

RECORD = Record(17, 1000, 0, b"k", b"v\x00\xff", (("a", b"1"), ("b", None), ("c", b"")))
NULLS = Record(18, -1, -1, None, None, ())


def printed(template: str, record: Record = RECORD) -> bytes:
    return b"".join(template_printer(template)("orders", 3, batch_from_records([record])))


@pytest.mark.parametrize(
    ("template", "output"),
    [
        ("%t %p %o %T", b"orders 3 17 1000"),
        ("%k=%s", b"k=v\x00\xff"),
        ("%K %S", b"1 3"),
        ("%R", b"\x00\x00\x00\x03"),
        ("%h", b"a=1,b=NULL,c="),
        ("100%%\\n", b"100%\n"),
        ("\\t\\r\\\\\\x41\\0102\\102\\0x41\\xaé", b"\t\r\\ABfAa" + "é".encode()),
        ("\\x341|\\q\\0|\\", b"A|q\0|\\"),
        ("", b""),
        ("%%o", b"%o"),
    ],
)
def test_kcats_tokens(template: str, output: bytes) -> None:
    assert printed(template) == output


def test_nulls_print_as_nothing_with_length_minus_one() -> None:
    assert printed("[%k][%s][%h] %K %S %T", NULLS) == b"[][][] -1 -1 -1"
    assert printed("%R", NULLS) == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("printer", [template_printer("%k %K,%h,%s %S %R\\n"), envelope_printer(), json_printer(b";")])
@pytest.mark.parametrize(
    "content", [b"", b"x" * 9, '"ü\\😀\n'.encode() * 5, b"\xff" * 10, b"\xf0\x9f", b"a\0" * 7, None], ids=repr
)
def test_a_large_record_is_printed_as_a_small_one(
    printer: Printer, content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [Record(1, 2, 0, key, content, (("h", content), ("ü", b"v"))) for key in (None, b"k" * 7, content)]
    batches = [batch_from_records([records[0], record]).slice(1) for record in records]
    small = [b"".join(printer("orders", 3, batch)) for batch in batches]
    monkeypatch.setattr(formatting, "is_large", lambda _: True)
    monkeypatch.setattr(formatting, "STEP_BYTES", 3)
    assert [b"".join(printer("orders", 3, batch)) for batch in batches] == small


@pytest.mark.parametrize("template", ["%", "%x", "a%"])
def test_unknown_tokens_are_refused(template: str) -> None:
    with pytest.raises(UsageError, match="is not a format token"):
        template_printer(template)


def test_the_envelope_of_a_record_without_timestamp() -> None:
    assert json.loads(envelope("orders", 3, NULLS)) == {
        "topic": "orders",
        "partition": 3,
        "offset": 18,
        "broker": -1,
        "key": None,
        "payload": None,
    }


def test_the_envelope_is_yajls_to_the_byte() -> None:
    everything = bytes(range(256))
    record = Record(5, 7, 1, b"", everything, (("/\x1b", None), ("h", b"\n")))
    escaped = (
        b"\\u0000\\u0001\\u0002\\u0003\\u0004\\u0005\\u0006\\u0007\\b\\t\\n\\u000B\\f\\r\\u000E\\u000F"
        b"\\u0010\\u0011\\u0012\\u0013\\u0014\\u0015\\u0016\\u0017\\u0018\\u0019\\u001A\\u001B\\u001C\\u001D\\u001E\\u001F"
        + everything[0x20:].replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    )
    assert envelope("t", 0, record) == (
        b'{"topic":"t","partition":0,"offset":5,"tstype":"logappend","ts":7,"broker":-1,'
        b'"headers":["/\\u001B",null,"h","\\n"],"key":"","payload":"' + escaped + b'"}'
    )


def test_headers_are_cut_at_nul_as_kcat_does() -> None:
    assert printed("%h", RECORD._replace(headers=(("a", b"1\x002"), ("b", b"\0")))) == b"a=1,b="
