"""Text of jobs that is data: fingerprints, derived names, and folders as an earlier build wrote them.

A change here breaks jobs that were begun before it: they could not be resumed, or would be written a second time.
"""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from blockgz.store.opening import open_store
from index_format import objects
from replayer.cli import main
from replayer.replay import pipeline
from replayer.restore import document
from replayer.transforms.chain import build_chain
from replayer.transforms.settings import read_transforms
from tests.support.commands import succeeded
from tests.support.mock_cluster import MockCluster

GOLDEN = Path(__file__).parents[2] / "golden" / "replay"
TRANSFORMS = GOLDEN / "transforms.properties"
CHAIN = (
    'transforms {"predicates": "p", "predicates.p.pattern": "never", "predicates.p.type": "TopicNameMatches", '
    '"transforms": "a,b", "transforms.a.header": "h", "transforms.a.type": "InsertHeader", '
    '"transforms.a.value.literal": "v", "transforms.b.predicate": "p", "transforms.b.type": "Filter"}'
)
FINGERPRINTS: list[tuple[pipeline.Stage | pipeline.Router, str]] = [
    (pipeline.Routing(), "keep"),
    (pipeline.Routing("number", 3), "modulo 3"),
    (pipeline.Routing("map", places=tuple({1: 0, 0: 2}.items())), "map 0:2,1:0"),
    (pipeline.Routing("by-key", 24), "murmur2 modulo 24"),
    (pipeline.Timestamps(), "timestamps keep"),
    (pipeline.Timestamps("now"), "timestamps now"),
    (pipeline.Timestamps("shift", 86_400_000), "timestamps +86400000 ms"),
    (pipeline.Timestamps("shift", -1), "timestamps -1 ms"),
    (pipeline.StripHeaders(("h", "it's")), """without headers ['h', "it's"]"""),
    (pipeline.AddHeader("k", b"v\xff'"), """with header 'k' b"v\\xff'\""""),
    (pipeline.AddProvenance("orders"), "provenance orders"),
    (pipeline.DropTombstones(), "without tombstones"),
    (
        pipeline.TransformStage(build_chain(read_transforms(TRANSFORMS)), "orders", "copy", "skip"),
        f"{CHAIN} from orders to copy, on error skip",
    ),
]
NAMES: list[tuple[tuple[str, ...], str]] = [
    (("orders",), "e36b50a4449c"),
    (("orders:1",), "95cf3e23a43e"),
    (("orders", "--from", "10"), "4b88f6c65ab7"),
    (("orders", "--to", "30"), "e69a8e0fc614"),
    (("orders", "--at", "@1760000000030"), "e3a114c35b1b"),
    (("orders", "--at", "@1760000000030", "--at-rule", "first"), "99a251461675"),
    (("orders", "--since", "@1760000000010", "--until", "@1760000000020"), "316e52e651d6"),
    (("orders", "--key", "7", "--null-key"), "34599f85eca2"),
    (("orders", "--header", "h=v", "--grep", "of 4"), "8e064c8f03dd"),
    (("orders", "--partitions", "by-key"), "3b4eea1707f0"),
    (("orders", "--partitions", "2"), "1b399b30a1c9"),
    (("orders", "--partitions", "0:1,1:0"), "166c06b583d3"),
    (("orders", "--timestamps", "now", "--provenance", "--tombstones", "drop"), "977ce8fe03dc"),
    (
        ("orders", "--timestamps", "shift=-90m", "--strip-header", "h", "--strip-header", "x", "--add-header", "k=v"),
        "a9b631176e51",
    ),
    (("orders", "--transforms", str(TRANSFORMS), "--allow-unchanged", "--on-transform-error", "skip"), "a76170dbc993"),
    (
        ("orders", "--append", "--on-damage", "skip", "--partial", "--rate", "5/s", "--compression", "zstd:3"),
        "e36b50a4449c",
    ),
    (("orders", "--transactional"), "e36b50a4449c"),
]
BEGUN = (
    *("orders", "--to-topic", "copy", "--job", "begun", "--partitions", "by-key:4", "--timestamps", "shift=+1d"),
    *("--strip-header", "x", "--add-header", "k=v", "--provenance", "--tombstones", "drop", "--allow-unchanged"),
    *("--transforms", str(TRANSFORMS), "--on-transform-error", "skip", "--since", "@1760000000002"),
    *("--on-damage", "skip"),
)
"""The command that began the job `begun`, which was interrupted after 88 of its records."""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "jobs", tmp_path / "jobs"))


def run(cluster: MockCluster, *args: str) -> Result:
    place = ("-a", str(GOLDEN / "archive"), "-b", cluster.bootstrap_servers)
    return CliRunner().invoke(main, [*args, *place], prog_name="replayer")


@pytest.mark.parametrize(("made", "expected"), FINGERPRINTS)
def test_fingerprints_stay(made: pipeline.Stage | pipeline.Router, expected: str) -> None:
    assert made.fingerprint == expected


@pytest.mark.parametrize(("request_", "expected"), NAMES)
def test_derived_names_of_jobs_stay(request_: tuple[str, ...], expected: str, cluster: MockCluster, jobs: Path) -> None:
    cluster.create_topic("copy")
    result = run(cluster, "replay", *request_, "--to-topic", "copy", "--dry-run", "--json", "--jobs", str(jobs))
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["plan"]["job"] == expected


def test_a_job_that_was_interrupted_is_resumed(cluster: MockCluster, jobs: Path) -> None:
    cluster.create_topic("copy")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for lane, written in enumerate((17, 18, 23, 30)):
        for _ in range(written):
            producer.produce("copy", b"written before", partition=lane)
    producer.flush()
    result = succeeded(run(cluster, "replay", *BEGUN, "--resume", "--yes", "--json", "--jobs", str(jobs)))
    told = json.loads(result.stdout)
    # Of 116 records from the time on, 18 are tombstones.
    assert (told["records_before"], told["records"], told["complete"]) == (88, 10, True)
    assert (jobs / "begun" / "request.json").read_bytes() == (GOLDEN / "jobs/begun/request.json").read_bytes()


@pytest.mark.slow
def test_the_same_command_keeps_the_same_of_a_job(cluster: MockCluster, jobs: Path) -> None:
    shutil.rmtree(jobs / "begun")
    cluster.create_topic("copy")
    succeeded(run(cluster, "replay", *BEGUN, "--yes", "--append", "--jobs", str(jobs)))
    wanted = json.loads((GOLDEN / "jobs/begun/request.json").read_bytes())
    found = json.loads((jobs / "begun" / "request.json").read_bytes())
    assert list(found) == list(wanted)
    assert found | {"begun_at": 0, "crc32": 0} == wanted | {"begun_at": 0, "crc32": 0}
    for name in ("attempts/000001.json", "positions.json", "runs/000001-00000000.json", "runs/000001-00000001.json"):
        assert list(json.loads((jobs / "begun" / name).read_bytes())) == list(
            json.loads((GOLDEN / "jobs/begun" / name).read_bytes())
        )


def test_jobs_are_listed_and_a_complete_one_is_proved(cluster: MockCluster, jobs: Path) -> None:
    listed = CliRunner().invoke(main, ["jobs", "--json", "--jobs", str(jobs)])
    told = [
        (each["job"], each["target"], each["records"], each["complete"]) for each in json.loads(listed.stdout)["jobs"]
    ]
    assert told == [("begun", "copy", 88, False), ("complete", "copy2", 120, True)]
    cluster.create_topic("copy2")
    proved = run(cluster, "verify", "--job", "complete", "--json", "--jobs", str(jobs))
    # The topic is empty here: what the job wrote is known, and missing.
    assert (proved.exit_code, json.loads(proved.stdout)["verdict"]) == (3, "FAILURE"), proved.stderr
    assert [each["missing"] for each in json.loads(proved.stdout)["lanes"][:2]] == [60, 60]


def test_a_plan_of_a_restore_stays() -> None:
    body = (GOLDEN / "plan.json").read_bytes()
    assert document.plan_text(document.parse_plan(body, "plan.json")) == body


def test_a_folder_of_a_restore_is_read(jobs: Path) -> None:
    folder = document.RestoreFolder(open_store(str(jobs), None), "restored")
    found = {
        "restore.json": folder.get(document.RestoreRecord),
        "topics/restored.orders-1.json": folder.get(document.TopicDone, "restored.orders-1"),
        "groups.json": folder.get(document.GroupsDone),
        "acls.json": folder.get(document.AclsDone),
        "standby.json": folder.get(document.StandbyReport),
        "switch-over.json": folder.get(document.SwitchOver),
    }
    for name, record in found.items():
        assert record is not None
        assert objects.encode(record) == (GOLDEN / "jobs/restored" / name).read_bytes()
    plan = document.parse_plan((GOLDEN / "plan.json").read_bytes(), "plan.json")
    assert folder.followed() == {"orders~1": plan.topics[0]}


def test_derived_names_of_restores_stay() -> None:
    topics = [("orders~1", "copy.orders"), ("other~2", "copy.other")]
    assert document.restore_name("archive-1", 1_760_000_000_050, topics, "cluster-1") == "restore-c084aec78207"
    assert document.topic_job("restored", "orders~1") == "restored.orders-1"
    assert document.topic_job("restored", "o" * 99 + "~1") == "restored.0d97ac0fcac1299a"
