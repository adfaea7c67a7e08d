"""How errors of ours pass through Spark."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType, SimpleNamespace

import pytest

from blockgz.errors import UsageError
from blockgz.spark.errors import ReadFailed, carry_errors, in_options, report_errors


def test_errors_name_options_rather_than_flags() -> None:
    assert in_options("use --group-id x, or --takeover - not -a") == "use groupId x, or takeover - not -a"
    assert in_options("another --archive") == "another path"
    assert in_options("check -a/--archive, or archiver run --once -a X") == "check path, or archiver run --once -a X"
    assert in_options("topic~e1--x-y") == "topic~e1--x-y"


@pytest.mark.parametrize(("program", "hidden"), [("pyspark.daemon", "1"), ("pytest.__main__", None)])
@pytest.mark.parametrize("raising", [report_errors, carry_errors])
def test_a_worker_of_sparks_shows_the_text_alone(
    program: str,
    hidden: str | None,
    raising: Callable[[type[Exception]], AbstractContextManager[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the process goes on after the exception, other tracebacks must stay."""
    environ: dict[str, str] = {}
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name=program)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr("blockgz.spark.errors.os.environ", environ)
    with pytest.raises(ReadFailed, match="nothing"), raising(ReadFailed):
        raise UsageError("nothing", remedy="something")
    assert environ.get("SPARK_HIDE_TRACEBACK") == hidden
