"""Tables, goals and the comparison with the last time."""

import pytest

from benchmarks import goals, results
from benchmarks.figures import Json
from benchmarks.goals import GOALS, judged
from benchmarks.readme import BEGIN, END, GOALS_BEGIN, GOALS_END, HEADLINES, figures_table, goals_table
from benchmarks.results import changes, load, merged, newest, store
from benchmarks.sections import peers
from benchmarks.tables import Table, as_markdown, as_text, costs

MACHINE = {"date": "2026-01-02", "cpu": "2 cores", "memory": "4 GiB", "python": "3.11"}
ROW = {"seconds": 2.0, "cpu_seconds": 1.0, "peak_bytes": 3e6, "records": 1000, "raw_bytes": 4e6}


def result(**ratios: float) -> dict:
    return merged(None, MACHINE, "archive", {"rows": {"base": ROW | {"share": 0.5}}, "ratios": ratios})


def test_text_is_aligned():
    assert (
        as_text(Table("T", ("", "n"), [("long name", "1"), ("x", "22")]))
        == "T\n            n\nlong name   1\nx          22"
    )


def test_markdown():
    assert as_markdown(Table("T", ("", "n"), [("a", "1")])) == "T:\n\n|  | n |\n| --- | ---: |\n| a | 1 |"


def test_costs_show_what_there_is():
    table = costs(
        "T", {"all": ROW | {"stored_bytes": 1e6, "share": 0.5}, "little": ROW | {"records": None, "raw_bytes": None}}
    )
    assert table.rows[0] == ("all", "2.00", "500", "2", "1000.00", "3", "25%", "50%")
    assert table.rows[1] == ("little", "2.00", "", "", "1.00 s", "3", "", "")


def test_a_section_that_is_run_again_takes_the_place_of_the_older_run():
    first = merged(None, MACHINE, "archive", {"ratios": {"a": 1}})
    second = merged(first, MACHINE, "replay", {"ratios": {"b": 2}})
    third = merged(second, MACHINE, "archive", {"ratios": {"a": 3}})
    assert third["sections"] == {"archive": {"ratios": {"a": 3}}, "replay": {"ratios": {"b": 2}}}
    assert first["sections"] == {"archive": {"ratios": {"a": 1}}}


def test_a_ratio_that_fell_by_more_than_a_fifth_is_reported():
    found = {
        change.name: change.fell for change in changes(result(a=1.0, b=1.0, gone=1), result(a=0.79, b=0.81, new=1))
    }
    assert found == {"a": True, "b": False}


def test_results_are_kept_by_date(tmp_path):
    for name in ("2026-01-01-full.json", "2026-01-03-full.json", "2026-01-04-quick.json"):
        store(tmp_path / name, result(a=1 / 3))
    assert newest(tmp_path, "full").name == "2026-01-03-full.json"
    assert newest(tmp_path, "full", "2026-01-03-full.json").name == "2026-01-01-full.json"
    assert newest(tmp_path, "full", "2026-01-01-full.json") is None
    assert load(tmp_path / "2026-01-04-quick.json")["sections"]["archive"]["ratios"] == {"a": 0.33333}
    assert load(tmp_path / "none.json") is None


def test_goals_are_judged_where_their_section_was_run(monkeypatch: pytest.MonkeyPatch):
    made = [
        goals.Goal("reached", "archive", "a", 0.5),
        goals.Goal("missed", "archive", "b", 2),
        goals.Goal("not run", "x", "c", 1),
    ]
    monkeypatch.setattr(goals, "GOALS", made)
    assert judged(result(a=0.5, b=1.5)).rows == [
        ("reached", "0.50", "0.50", ""),
        ("missed", "2.00", "1.50", "missed by 25%"),
    ]


def test_exponents_are_judged_by_both_bounds():
    slopes = {"records: archive, time": 1.2, "records: archive, memory": 0.02}
    rows = judged(merged(None, MACHINE, "growth", {"ratios": {}, "slopes": slopes})).rows
    assert [(row[1], row[3]) for row in rows] == [("0.95 to 1.05", "missed"), ("-0.1 to 0.1", "")]


def test_goals_name_sections_that_there_are():
    source = (results.FOLDER.parent / "sections").glob("*.py")
    assert {goal.section for goal in GOALS} <= {path.stem for path in source}


def test_the_goals_against_peers_name_ratios_that_are_measured():
    archived = [f"archive {name}" for name in (*peers.OURS, peers.TO_S3, peers.PEER)]
    names = [*archived, *(f"replay {name}" for name in (*peers.REPLAYED, peers.PEER))]
    ratios = peers.compared({name: {"seconds": 1, "peak_bytes": 1, "stored_bytes": 1} for name in names})
    wanted = {goal.ratio.partition(": ")[2] for goal in GOALS if goal.section == "peers"}
    assert wanted <= set(ratios)


def test_the_page_about_performance_shows_the_newest_results():
    assert _shown("docs/performance.md", BEGIN, END) == figures_table(_newest()), (
        "paste what `python -m benchmarks --figures` prints"
    )


def test_the_page_about_performance_shows_the_goals():
    shown = _shown("docs/performance.md", GOALS_BEGIN, GOALS_END)
    assert shown == goals_table(_newest()), "paste what `python -m benchmarks --goals` prints"


def _newest() -> Json:
    path = newest(results.FOLDER, "full")
    found = load(path) if path else None
    if found is None:
        pytest.skip("no results are kept")
    return found


def _shown(page: str, begin: str, end: str) -> str:
    text = (results.FOLDER.parents[1] / page).read_text()
    return text.partition(f"{begin}\n\n")[2].partition(f"\n\n{end}")[0]


def test_the_readme_has_at_most_five_figures():
    assert len(HEADLINES) <= 5
    row = {"records": 1000, "raw_bytes": 4_000_000, "seconds": 2, "peak_bytes": 3_000_000}
    measured = {"rows": {"1 KB: archive json": row}, "ratios": {"1 KB: archive json / kafka-backup": 1.5}}
    text = figures_table(merged(None, MACHINE, "peers", measured))
    assert "2026-01-02: 2 cores, 4 GiB, Python 3.11" in text
    assert "| archive, json, 1 KB | 500 | 2 | 3 | 1.50x |" in text


def test_goals_are_shown_as_markdown():
    text = goals_table(result(**{"base: of its limit": 0.5}))
    assert "| Archive, json: share of its limit | 0.60 | 0.50 | missed by 17% |" in text
