"""What a verification says that a signal ends, and what its reports leave out."""

from asyncio import CancelledError
from pathlib import Path

import pytest
from click.testing import CliRunner

from index_format.records import Record
from replayer.cli import main
from replayer.cli.report import naming_what_is_left
from tests.support.archives import ArchiveWriter
from tests.support.mock_cluster import MockCluster


@pytest.mark.parametrize("signalled", [KeyboardInterrupt, CancelledError])
def test_partitions_that_are_left_are_named(signalled: type[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(signalled), naming_what_is_left(["a:0", "a:1", "a:2"], lambda: 1):
        raise signalled
    assert capsys.readouterr().err == "note: ended with 2 of 3 partitions left: a:1, a:2\n"


def test_a_failure_speaks_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="wrong"), naming_what_is_left(["a:0"], lambda: 0):
        raise ValueError("wrong")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize("without", [False, True])
def test_reports_leave_content_out(tmp_path: Path, form: list[str], without: bool) -> None:
    cluster = MockCluster()
    content = (b"KEY-1", b"VALUE-1", (("HEADER-1", b"HELD-1"),))
    ArchiveWriter(tmp_path / "a").partition("orders", 0).commit([Record(0, 1_760_000_000_000, 0, *content)])
    cluster.produce("copy", 0, [Record(0, 1_760_000_000_000, 0, b"KEY-2", b"VALUE-2", (("HEADER-2", b"HELD-2"),))])
    reports = [tmp_path / "r.json", tmp_path / "r.html"]
    command = ["verify", "orders", "--against-topic", "copy", "-a", str(tmp_path / "a"), *form]
    command += [part for report in reports for part in ("--report", str(report))]
    command += ["-b", cluster.bootstrap_servers, *(["--no-content"] if without else [])]
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 3, told.output
    for text in (told.output, *(report.read_text() for report in reports)):
        quoted = [name for name in ("KEY-", "VALUE-", "HEADER-") if name in text]
        assert quoted == ([] if without else ["KEY-", "VALUE-", "HEADER-"])
        assert "1760000000000" in text
    assert '"content"' in reports[0].read_text(), "digests stay"
