"""The table that our transforms are tested against, held against Kafka Connect itself."""

import dataclasses
import json
from typing import Any

import pytest

from system_test.support.java_clients import ask_connect
from tests.support.transform_cases import CASES, Given

JUDGED = [number for number, case in enumerate(CASES) if not case.ours]


@pytest.fixture(scope="module")
def answers() -> dict[int, dict[str, Any]]:
    """Connect's answers to all cases by their place in the table, from one process."""
    requests = [
        {
            "config": dict(CASES[number].config),
            "records": [dataclasses.asdict(given) for given, _ in CASES[number].outcomes],
        }
        for number in JUDGED
    ]
    return dict(zip(JUDGED, ask_connect(requests), strict=True))


@pytest.mark.parametrize("number", JUDGED, ids=lambda number: CASES[number].name)
def test_connect_does_what_the_table_says(number: int, answers: dict[int, dict[str, Any]]) -> None:
    case, answer = CASES[number], answers[number]
    assert "refused" not in answer, answer
    for (given, outcome), found in zip(case.outcomes, answer["records"], strict=True):
        if outcome == "error":
            assert found == "error", given
        elif outcome == "dropped":
            assert found is None, given
        else:
            assert found != "error", given
            assert comparable(found) == comparable({**shown(given), **dict(outcome)}), given


def shown(given: Given) -> dict[str, Any]:
    """A record that nothing was done to."""
    return {name: getattr(given, name) for name in ("topic", "key", "value", "headers")}


def comparable(record: dict[str, Any]) -> dict[str, Any]:
    """JSON by what it means, integers and floats apart."""
    headers = [list(header) for header in record["headers"]]
    return {**record, "key": meaning(record["key"]), "value": meaning(record["value"]), "headers": headers}


def meaning(text: str | None) -> Any:
    """JSON in one form, other texts as they are."""
    try:
        return text if text is None else json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text
