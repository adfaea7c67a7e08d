"""Who is asked before something is changed, and what counts as a yes."""

import io

import click
import pytest

from blockgz.errors import UsageError
from blockgz.program.main import confirm


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def answered(monkeypatch: pytest.MonkeyPatch, answer: str, typed: str | None = None) -> bool:
    """Whether that is taken for a yes."""
    monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
    try:
        confirm("Delete it?", undone="nothing was deleted", is_agreed=False, typed=typed)
    except click.exceptions.Exit as ended:
        assert ended.exit_code == 130
        return False
    return True


def test_a_word_that_is_to_be_typed_is_the_only_yes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answered(monkeypatch, "y")
    assert not answered(monkeypatch, "n")
    assert answered(monkeypatch, "orders", "orders")
    assert not answered(monkeypatch, "y", "orders")
    assert capsys.readouterr().err.count("nothing was deleted\n") == 2


@pytest.mark.parametrize("typed", [None, "orders"])
def test_without_a_terminal_only_consent_beforehand_counts(monkeypatch: pytest.MonkeyPatch, typed: str | None) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("orders\n"))
    with pytest.raises(UsageError, match="nothing was deleted"):
        confirm("Delete it?", undone="nothing was deleted", is_agreed=False, typed=typed)
    confirm("Delete it?", undone="nothing was deleted", is_agreed=True, typed=typed)
