from index_format.records import Record, batch_from_records
from replayer.replay.job import Job
from replayer.replay.pipeline import KeepPartitions, ScannedBatch
from replayer.replay.routing import FoldPartitions, MapPartitions, SpreadByKey
from replayer.spark.jobs.source_lanes import OfSource, places_for, source_lane

JOB = Job("job", "copy", "0" * 16)


def test_lanes_stand_at_the_targets_partitions_and_go_on_in_further_groups() -> None:
    lanes = [source_lane(JOB, source, 2) for source in range(5)]
    assert [(lane.job.group_id, lane.number) for lane in lanes] == [
        ("blockgz-job", 0),
        ("blockgz-job", 1),
        ("blockgz-job.1", 0),
        ("blockgz-job.1", 1),
        ("blockgz-job.2", 0),
    ]
    assert len({lane.job.transactional_id(lane.number) for lane in lanes}) == 5


def test_records_of_a_lane_are_those_of_its_source() -> None:
    records = batch_from_records([Record(offset, 1, 0, None, b"", []) for offset in range(6)])
    router = SpreadByKey(3)
    lane = OfSource(router, 7)
    assert lane.route(ScannedBatch(0, records)) == router.route(ScannedBatch(7, records))
    assert lane.targets(0) == range(3)
    assert OfSource(FoldPartitions(4), 7).targets(0) == (3,)
    assert lane.fingerprint == router.fingerprint


def test_places_depend_on_what_makes_the_job_and_on_nothing_that_grows() -> None:
    assert [places_for(SpreadByKey(3), sources) for sources in ([0], [0, 9])] == [3, 3]
    assert [places_for(FoldPartitions(4), sources) for sources in ([0], [0, 9])] == [4, 4]
    assert places_for(MapPartitions({0: 2, 1: 0}), [1]) == 3
    # Partition n of the source stands at partition n of the target, of however many there are.
    assert source_lane(JOB, 7, places_for(KeepPartitions(), [2, 7])).number == 7
