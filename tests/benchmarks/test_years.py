"""A life of weeks in the place of a year: maintained every night, an archive stops growing."""

from xml.etree import ElementTree

import pytest

from benchmarks.years import Week, plot, run


@pytest.mark.slow
def test_an_archive_that_is_maintained_stops_growing() -> None:
    weeks = list[Week]()
    run(28, 20, 5, weeks.append)
    assert [week.number for week in weeks] == [1, 2, 3, 4]
    assert weeks[3].without > 1100
    assert max(week.objects for week in weeks[2:]) < weeks[3].without * 0.6
    assert max(week.chunks for week in weeks) < 140
    assert max(week.requests for week in weeks) < 6
    drawn = ElementTree.fromstring(plot(weeks, 50))
    assert len(drawn.findall("{*}polyline")) == 4
