"""Commands as a user types them, from following an archive to `undo`; what holds for every command."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import termios
import time
from asyncio import CancelledError
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from blockgz.archive.archive import ArchivePlace
from blockgz.program.main import EXIT_CODES, NEVER_FROM_ENVIRONMENT, Program, completed
from blockgz.program.options import TimeOption
from blockgz.store.address import AT_AWS, S3Settings
from blockgz.store.local import LocalStore
from index_format.records import Record
from replayer.cli import COMMANDS, main
from replayer.cli.report import naming_what_is_left
from replayer.cli.undo import UndoOptions
from replayer.replay.jobs.control import held, lock_folder
from replayer.replay.jobs.folder import JobFolder, JobUndone, LaneEnd, Segment, open_jobs
from replayer.restore.document import (
    AclsDone,
    GroupsDone,
    RestoreFolder,
    RestoreGroups,
    RestorePlan,
    RestoreRecord,
    RestoreUndone,
    SkippedOffsets,
    SwitchOver,
    TopicDone,
    TopicToRestore,
    WantedTopics,
    plan_text,
    topic_job,
)
from tests.replayer.replay.jobs.test_log import UNDONE, request
from tests.support.archives import ArchiveWriter, put_topic_config, records
from tests.support.commands import commands, exited, succeeded
from tests.support.maintained import three_catalogs
from tests.support.mock_cluster import MockCluster

START = "import os, signal, sys; signal.signal(signal.SIGINT, signal.{}); os.execv(sys.argv[1], sys.argv[1:])"
HOLDING = """
import os, signal, threading
from blockgz.process import ended_soon_after_signals
signal.signal(signal.SIGTERM, lambda *_: None)
with ended_soon_after_signals({signal.SIGTERM: 143}, 0.01), threading._active_limbo_lock:
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()
"""
FULL_PIPE_BYTES = 60_000
"""Of 64 KiB."""


def following(root: Path, *command: str, interrupts: str, stdin: bytes = b"") -> "subprocess.Popen[bytes]":
    program = [sys.executable, "-m", "replayer", *command, "-a", str(root)]
    started = [sys.executable, "-c", START.format(interrupts), *program]
    (root / "stdin").write_bytes(stdin)
    with (root / "stdin").open("rb") as given:
        return subprocess.Popen(started, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "number", "interrupts", "exit_code"),
    [
        ("tail big -n 3000 -F", signal.SIGTERM, "SIG_IGN", 143),
        ("tail big -n 3000 -F", signal.SIGINT, "SIG_DFL", 130),
        ("cat big", signal.SIGTERM, "SIG_DFL", 143),
        ("get - --follow", signal.SIGTERM, "SIG_DFL", 143),
        ("get - --follow", signal.SIGINT, "SIG_DFL", 130),
    ],
)
def test_a_signal_ends_what_nobody_reads(
    tmp_path: Path, number: signal.Signals, interrupts: str, exit_code: int, command: str
) -> None:
    ArchiveWriter(tmp_path).partition("big", 0).commit(records(range(3000), value_bytes=200), block_bytes=50_000)
    places = "".join(f"big:0:{offset}\n" for offset in range(3000)).encode()
    with following(tmp_path, *command.split(), interrupts=interrupts, stdin=places) as program:
        assert program.stdout is not None
        deadline = time.monotonic() + 60
        while waiting_bytes(program.stdout.fileno()) < FULL_PIPE_BYTES:
            assert time.monotonic() < deadline
            os.sched_yield()
        program.send_signal(number)
        assert program.wait(timeout=30) == exit_code


def test_a_signal_ends_what_holds_a_lock_of_threading() -> None:
    done = subprocess.run([sys.executable, "-c", HOLDING], timeout=60, check=False)
    assert done.returncode == 143


@pytest.mark.slow
def test_a_signal_ends_waiting_for_a_record(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path).partition("big", 0).commit(records(range(3)))
    with following(tmp_path, "get", "big:0:9", "-F", "--interval", "100ms", interrupts="SIG_IGN") as program:
        deadline = time.monotonic() + 60
        while not catches_sigterm(program):
            assert time.monotonic() < deadline
            os.sched_yield()
        program.send_signal(signal.SIGTERM)
        assert program.wait(timeout=30) == 143


def waiting_bytes(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def catches_sigterm(program: "subprocess.Popen[bytes]") -> bool:
    status = Path(f"/proc/{program.pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (signal.SIGTERM - 1) & 1)


SVG = "{http://www.w3.org/2000/svg}"


def replayer(*args: object, root: Path) -> Result:
    return CliRunner().invoke(main, [*map(str, args), "-a", str(root)], prog_name="replayer")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Pruned below 20; of the rest 25 was erased, and all of [40..60)."""
    maintainer = three_catalogs(ArchiveWriter(tmp_path).partition("orders", 0))
    maintainer.prune(1)
    maintainer.rewrite([2], [25, *range(40, 60)])
    return tmp_path


@pytest.mark.parametrize(
    ("offset", "why"),
    [
        (5, "it was pruned: the archive keeps nothing of this partition below offset 20"),
        (25, "it was erased from the archive, as offsets [25..26) were"),
        (45, "it was erased from the archive, as offsets [40..60) were"),
    ],
)
def test_get_says_why_there_is_no_record(root: Path, offset: int, why: str) -> None:
    done = exited(replayer("get", f"orders:0:{offset}", root=root), 4)
    assert why in done.stderr


def test_printing_begins_at_the_floor(root: Path) -> None:
    for begin in ((), ("--from", "0"), ("--from", "earliest"), ("--from", "5")):
        done = replayer("cat", "orders", "-f", "%o\n", *begin, root=root)
        assert list(map(int, done.stdout.split())) == [*range(20, 25), *range(26, 40), *range(60, 70)]


def test_listings_show_the_floor_and_what_is_erased(root: Path) -> None:
    (topic,) = json.loads(replayer("ls", "--json", root=root).stdout)["topics"]
    (partition,) = topic["partitions"]
    assert (partition["pruned_before"], partition["start_offset"], partition["records"]) == (20, 20, 29)
    described = replayer("describe", "orders", root=root).stdout
    assert "partition 0: pruned, nothing below offset 20 is kept" in described
    assert "partition 0: gap [40..60) (erased)" in described


def test_coverage_shows_the_floor_and_what_is_erased(root: Path) -> None:
    (partition,) = json.loads(replayer("coverage", "--json", root=root).stdout)["partitions"]
    assert partition["pruned_before"] == 20
    assert [(each["from"], each["to"]) for each in partition["erased"]] == [(40, 60)]
    assert partition["gaps"] == []
    table = replayer("coverage", root=root).stdout
    assert "orders:0: pruned, nothing below offset 20 is kept" in table
    assert "orders:0: all records of [40..60) were erased" in table
    picture = ElementTree.fromstring(replayer("coverage", "--format", "svg", root=root).stdout)
    marks = {
        rect.get("class"): title.text
        for rect in picture.iter(f"{SVG}rect")
        if (title := rect.find(f"{SVG}title")) is not None
    }
    assert marks["p"] == "nothing below the floor: offsets [0..20) (pruned)"
    assert marks["e"] == "no record left: offsets [40..60) (erased)"
    assert "g" not in marks


def test_verify_is_content(root: Path) -> None:
    done = succeeded(replayer("verify", "--deep", "--records", root=root))
    assert "orders:0 pruned: nothing below offset 20 is kept" in done.stdout
    assert "orders:0 erased: [25..26), [40..60)" in done.stdout
    assert done.stdout.splitlines()[-1] == "OK"


def test_exports_leave_out_what_is_gone(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "orders.jsonl"
    succeeded(replayer("export", "orders", target, root=root))
    assert len(target.read_text().splitlines()) == 29
    nothing = replayer("export", "orders", tmp_path / "none.jsonl", "--from", "40", "--to", "60", root=root)
    assert (nothing.exit_code, nothing.stderr) == (
        0,
        "no records at orders:0 [40..60): replayer get orders:0:40 says why\n",
    )


def program_lines(*args: str) -> Result:
    return CliRunner().invoke(main, args, prog_name="replayer")


ALL = [((), main), *commands(main)]


@pytest.mark.parametrize("path", [path for path, _ in ALL], ids=" ".join)
def test_every_help_shows_an_example_and_the_exit_codes(path: tuple[str, ...]) -> None:
    page = program_lines(*path, "--help").stdout
    assert f"  replayer {' '.join(path)}" in page.split("Examples:")[1]
    assert all(f"{code:>3}  {meaning}" in page for code, meaning in EXIT_CODES.items())


def test_an_option_has_one_environment_variable_everywhere() -> None:
    variables: dict[str, set[str]] = {}
    for path, command in ALL:
        if isinstance(command, click.Group):
            continue
        page = " ".join(program_lines(*path, "--help").stdout.split())
        assert "BLOCKGZ_DEBUG" in [option.envvar for option in command.params if isinstance(option, click.Option)]
        for option in command.params:
            if isinstance(option, click.Option) and option.name not in NEVER_FROM_ENVIRONMENT:
                assert isinstance(option.envvar, str), (path, option.opts)
                assert option.envvar.startswith("BLOCKGZ_")
                assert f"[env var: {option.envvar}" in page
                variables.setdefault(option.envvar, set()).add(option.opts[-1])
    assert all(len(options) == 1 for options in variables.values()), variables


def test_every_option_that_takes_a_time_says_what_zone_it_is_in() -> None:
    found = set()
    for path, command in ALL:
        times = {param.name: param for param in command.params if isinstance(param, TimeOption)}
        takers = {"--from", "--to", "--at", "--since", "--until", "--time"}
        assert times.keys() >= {each.name for each in command.params if takers & {*each.opts}}, path
        assert not times or "timezone" in [param.name for param in command.params], path
        assert all("without a zone is UTC (see --timezone)" in str(param.help) for param in times.values())
        found |= {path[0]} if times else set()
    assert found >= {"cat", "drill", "export", "find", "grep", "groups", "replay", "restore", "spark", "tail", "verify"}


def test_consent_is_never_taken_from_the_environment() -> None:
    options = {option.opts[-1]: option.envvar for _, command in ALL for option in command.params}
    assert (options["--yes"], options["--into-source"]) == (None, None)


@pytest.mark.parametrize(
    "command",
    [
        ("export", "orders", "s3://bucket/orders.parquet"),
        ("verify", "--report", "s3://bucket/report.json"),
        ("restore", "orders", "--plan", "s3://bucket/plan.json"),
    ],
)
def test_files_are_not_written_to_addresses_of_objects(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = exited(program_lines(*command, "-a", str(tmp_path)), 2)
    assert "is not a local file" in result.stderr and "aws s3 cp" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_mistyped_command_is_answered_with_those_that_look_alike() -> None:
    result = exited(program_lines("replya"), 2)
    assert "No such command 'replya'. Did you mean 'replay'" in result.stderr
    assert "Did you mean" not in program_lines("xyz").stderr


def test_the_help_page_has_the_whole_summaries() -> None:
    page = " ".join(program_lines("--help").stdout.split())
    assert "..." not in page.split("Commands:")[1].split("Examples:")[0]
    assert all(summary in page for _, summary in COMMANDS.values())


def test_commands_inside_groups_are_completed_once() -> None:
    @click.command("inner")
    @click.option("-l", "--long-name", "renamed")
    @click.option("-f", "template", envvar="BLOCKGZ_TEMPLATE")
    def inner(renamed: str | None, template: str | None) -> None:
        click.echo(f"{renamed} {template}")

    plain = click.Group("plain", commands=[inner])
    whole = completed(completed(click.Group("outer", commands=[plain])))
    result = CliRunner().invoke(
        whole, ["plain", "inner", "--debug"], env={"BLOCKGZ_LONG_NAME": "x", "BLOCKGZ_TEMPLATE": "y"}
    )
    assert (result.exit_code, result.output) == (0, "x y\n")
    assert [param.name for param in inner.params] == ["renamed", "template", "debug"]


def test_commands_of_a_group_inside_the_program_are_completed() -> None:
    nested = Program("nested", places={"reports": ("replayer.cli.report:verify_report", "Reports.")})
    outer = completed(click.Group("outer", commands=[nested]))
    help_page = CliRunner().invoke(outer, ["nested", "reports", "--help"]).output
    assert "BLOCKGZ_REPORT_KEY" in help_page
    assert "BLOCKGZ_DEBUG" in help_page


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
    told = exited(CliRunner().invoke(main, command), 3)
    for text in (told.output, *(report.read_text() for report in reports)):
        quoted = [name for name in ("KEY-", "VALUE-", "HEADER-") if name in text]
        assert quoted == ([] if without else ["KEY-", "VALUE-", "HEADER-"])
        assert "1760000000000" in text
    assert '"content"' in reports[0].read_text(), "digests stay"


CLUSTER = ("-b", "127.0.0.1:1", "-a", "./archive")


def restore(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["restore", *arguments, *CLUSTER])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "--at, which says as of when, is missing"),
        (("--at", "soon"), "'soon' is not a time"),
        (("--at", "-1h", "--map", "a"), "--map 'a' renames nothing"),
        (("--at", "-1h", "--group-map", "(=x"), "--group-map '(=x' renames nothing"),
        (("--at", "-1h", "--no-groups", "--groups", "a*"), "--no-groups restores no groups"),
        (("--at", "-1h", "--report", "r.html"), "a restore writes .json"),
        (("--at", "-1h", "--rate", "fast"), "'fast' is not a rate"),
        (("--at", "-1h", "--sample", "1%"), "--sample says how much is proved with --prove sample"),
        (("--follow",), "--follow needs --name"),
        (("--follow", "--status", "--name", "n"), "--follow and --status are two things"),
        (("--follow", "--name", "n", "--at", "-1h"), "--follow has no end"),
        (("--follow", "--name", "n", "--from-plan", "plan.json"), "--follow has no end"),
        (("--follow", "--name", "n", "--no-transactional"), "needs transactions"),
        (("--follow", "--name", "n", "--prove", "all"), "--prove says what --switch-over compares"),
        (("--status", "--name", "n", "orders"), "--status is of what is followed"),
        (("--switch-over", "--name", "n", "--map", "a=b"), "--switch-over is of what is followed"),
        (("--switch-over",), "--switch-over needs --name"),
        (("--from-plan", "plan.json", "--at", "-1h"), "--from-plan says what is restored"),
        (("--from-plan", "plan.json", "orders"), "--from-plan says what is restored"),
        (("--from-plan", "plan.json", "--resume"), "remove --from-plan"),
        (("--from-plan", "plan.json", "--group-map", "a=b"), "--from-plan says how topics are restored"),
        (("--from-plan", "plan.json", "--no-groups"), "--from-plan says how topics are restored"),
        (("--from-plan", "plan.json", "--prove", "none"), "--from-plan says how topics are restored"),
        (("--from-plan", "plan.json", "--partial"), "--from-plan says how topics are restored"),
        (("--from-plan", "plan.json", "--replication-factor", "1"), "--from-plan says how topics are restored"),
    ],
)
def test_contradictions_are_usage_errors(
    arguments: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_bytes(b"{}")
    result = exited(restore(*arguments), 2)
    assert told in " ".join(result.stderr.split())


def test_the_plan_of_another_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ArchiveWriter(Path("archive")).partition("orders", 0).commit(records(range(3)))
    topic = TopicToRestore(source="orders~1", target="copy", partitions=1, numbers=(0,), settings={})
    other = RestorePlan(archive_id="another", at=1_760_000_000_000, topics=(topic,))
    Path("plan.json").write_bytes(plan_text(other))
    refused = restore("--from-plan", "plan.json", "--yes")
    assert (refused.exit_code, "is of another archive" in refused.stderr) == (2, True), refused.output
    begun = {"cluster_id": None, "host": "h", "begun_at": 1}
    for name, plan in (("night", other), ("standby", replace(other, follow=WantedTopics()))):
        folder = RestoreFolder(open_jobs(None, ArchivePlace("./archive")), name)
        folder.begin(RestoreRecord(name=name, plan=plan, **begun))
    for arguments in (
        ("--resume", "--name", "night"),
        ("--resume", "--follow", "--name", "standby"),
        ("--status", "--name", "standby"),
        ("--switch-over", "--name", "standby", "--yes"),
    ):
        refused = restore(*arguments)
        assert (refused.exit_code, "is of another archive" in refused.stderr) == (2, True), refused.output


TOPIC = TopicToRestore(source="orders~1", target="copy", partitions=1, numbers=(0,), settings={})
PLAN = RestorePlan(archive_id="", at=1_760_000_000_000, topics=(TOPIC,), partial=True)
AT = "2025-10-09T08:53:20Z"


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RestorePlan:
    """A restore of the name night and a standby."""
    monkeypatch.chdir(tmp_path)
    ArchiveWriter(Path("archive")).partition("orders", 0).commit(records(range(3)))
    followed = replace(PLAN, follow=WantedTopics(("orders",), (("a", "b"),)), topics=())
    for name, plan in (("night", PLAN), ("standby", followed)):
        folder = RestoreFolder(open_jobs(None, ArchivePlace("./archive")), name)
        folder.begin(RestoreRecord(name=name, plan=plan, cluster_id=None, host="h", begun_at=1))
    return PLAN


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("--at", "2025-10-09T08:53:21Z"), "--at"),
        (("--map", "orders=other"), "--map"),
        (("bills",), "TOPIC"),
        (("b*",), "TOPIC"),
        (("--prove", "none"), "--prove"),
        (("--prove", "sample", "--sample", "1%"), "--prove, --sample"),
        (("--replication-factor", "2"), "--replication-factor"),
        (("--topic-config", "retention.ms=1"), "--topic-config"),
        (("--omit-topic-config", "retention.ms"), "--omit-topic-config"),
        (("--groups", "bil*"), "--groups or --group-map"),
        (("--group-map", "a=b", "--groups", "bil*"), "--groups or --group-map"),
        (("--on-damage", "skip", "--no-transactional"), "--no-transactional"),
        (("--follow", "--name", "standby", "bills"), "TOPIC"),
        (("--follow", "--name", "standby", "--map", "a=c"), "--map"),
    ],
)
@pytest.mark.usefixtures("begun")
def test_a_restore_is_resumed_as_it_was_begun(given: tuple[str, ...], named: str) -> None:
    refused = exited(restore("--resume", "--dry-run", "--name", "night", *given), 2)
    assert f"was begun otherwise: {named}\n" in refused.stderr


@pytest.mark.parametrize(
    "given", [(), ("orders", "--at", AT, "--map", "(o)rders=copy", "--partial"), ("ord*",), ("--on-damage", "skip")]
)
@pytest.mark.usefixtures("begun")
def test_the_first_command_may_be_repeated(given: tuple[str, ...]) -> None:
    succeeded(restore("--resume", "--dry-run", "--name", "night", *given))


@pytest.mark.parametrize(
    ("changes", "code"), [({}, 3), ({"lacks": (), "refused": "it exists"}, 2), ({"lacks": ()}, 0)], ids=str
)
def test_a_dry_run_exits_as_the_run_would(begun: RestorePlan, changes: dict[str, str], code: int) -> None:
    topic = replace(begun.topics[0], **{"lacks": ("partition 1 is missing",), **changes})
    folder = RestoreFolder(open_jobs(None, ArchivePlace("./archive")), "part")
    plan = replace(begun, topics=(topic,))
    folder.begin(RestoreRecord(name="part", plan=plan, cluster_id=None, host="h", begun_at=1))
    done = restore("--resume", "--dry-run", "--name", "part")
    assert done.exit_code == code, done.output


def existing(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["restore", *arguments], prog_name="replayer")


def status(name: str, code: int = 3) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(exited(existing("status", name, "--json"), code).stdout))


def test_restores_are_listed_with_what_is_done_and_what_is_missing(tmp_path: Path) -> None:
    assert json.loads(succeeded(existing("ls", "--json")).stdout) == {"restores": []}
    exited(existing("status", "night"), 2)
    store = open_jobs(None, ArchivePlace("./archive"))
    bills = TopicToRestore(
        source="bills~1", target="new.bills", partitions=1, numbers=(0,), settings={}, records=9, groups=("b", "a")
    )
    plan = replace(PLAN, topics=(TOPIC, bills), groups=RestoreGroups(rename=(("(.*)", r"new.\1"),)), create_acls=True)
    folder = RestoreFolder(store, "night")
    folder.begin(
        RestoreRecord(name="night", plan=plan, cluster_id="c", host="h", begun_at=1, where="-a ./a -b x:1 --jobs j")
    )
    jobs = [topic_job("night", each.source) for each in plan.topics]
    lost = SkippedOffsets(0, 3, 5, "0 [3..5): torn")
    done = {"source": "orders~1", "target": "copy", "records": 3, "verdict": None, "at": 1}
    folder.put(TopicDone(skipped=(lost,), **done), jobs[0])
    found = status("night")
    assert [(each["source"], each["state"], each["missing"]) for each in found["topics"]] == [
        ("bills~1", "not begun", "9 records"),
        ("orders~1", "restored", None),
    ]
    assert found["topics"][1]["skipped"] == ["0 [3..5): torn"]
    assert found["missing"] == ["group new.a is not set", "group new.b is not set", "the ACLs are not created"]
    assert found["continue"] == "replayer restore --resume --name night --yes -a ./a -b x:1 --jobs j"
    shown = existing("status", "night")
    assert "FAILURE orders~1: skipped 0 [3..5): torn" in shown.stderr
    assert shown.stdout.splitlines()[-2:] == [
        "restore night is incomplete: 1 of 2 topics, 0 groups",
        f"to continue: {found['continue']}",
    ]

    of_job = JobFolder(store, jobs[1])
    of_job.create(request(job=jobs[1]))
    of_job.add_segment(1, 0, Segment(attempt="x", lanes={0: LaneEnd(0, 0)}))
    of_job.add_segment(1, 1, Segment(attempt="x", runs=((0, 0, 4, 0, 0, 4),)))
    (row,) = (each for each in status("night")["topics"] if each["source"] == "bills~1")
    assert (row["state"], row["records"], row["missing"]) == ("begun", 4, "5 records")
    with held(lock_folder(), "night"):
        assert status("night", 0)["state"] == "running"
    folder.put(TopicDone(**(done | {"source": "bills~1", "target": "new.bills"})), jobs[1])
    folder.put(GroupsDone(groups={"new.a": 1, "new.b": 1}, at=1))
    assert status("night")["missing"] == ["the ACLs are not created"]
    folder.put(AclsDone(acls={}, at=1))
    assert (status("night", 0)["state"], status("night", 0)["continue"]) == ("complete", None)
    assert existing("ls").stdout.splitlines()[-1].split() == ["night", AT, "c", "2", "2", "2", "complete"]

    of_job.put(JobUndone(target="new.bills", target_topic_id="t", records=4, host="h", undone_at=1))
    folder.put(RestoreUndone(host="h", undone_at=1))
    assert {each["state"] for each in status("night", 0)["topics"]} == {"restored", "undone"}
    (told,) = json.loads(succeeded(existing("ls", "--json")).stdout)["restores"]
    assert (told["state"], told["topics_done"], told["topics_of"], told["groups"]) == ("undone", 1, 2, 2)
    Path(store.url.removeprefix("file://"), "night", "groups.json").write_text("{}")
    assert "cannot be read" in exited(existing("ls"), 3).stderr


def test_copies_that_are_gone_because_their_restore_was_undone_are_one_line(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    for topic, numbers in (("copy", 3), ("orders", 1)):
        for number in range(numbers):
            writer.partition(topic, number).commit(records(range(3)))
    undo = UndoOptions(None, False, True, False, {}, str(tmp_path), AT_AWS)
    undo.mark_copies({("copy", "id-1"), ("orders", "of another cluster")})
    undo._replace(archive="s3://nowhere", s3=S3Settings(endpoint_url="http://127.0.0.1:1")).mark_copies({("a", "b")})
    for topic in ("copy", "orders"):
        shutil.rmtree(tmp_path / f"topic={topic}")
    result = exited(CliRunner().invoke(main, ["ls", "-a", str(tmp_path), "--json"]), 3)
    assert len(json.loads(result.stdout)["missing"]) == 4
    told = [line for line in result.stderr.splitlines() if line.startswith(("error", "gone"))]
    assert told[0] == "error: orders:0 is missing"
    assert told[1].startswith("gone: 3 partitions of undone restores; ")


@pytest.mark.usefixtures("begun")
def test_a_restore_of_an_earlier_version_and_a_standby_name_the_command_that_continues_them() -> None:
    assert status("night")["continue"] == "replayer restore --resume --name night --yes -b HOST:PORT -a ADDRESS"
    found = status("standby")
    assert (found["state"], found["at"]) == ("not running", None)
    assert "restore --follow --resume --name standby " in found["continue"]
    RestoreFolder(open_jobs(None, ArchivePlace("./archive")), "standby").put(SwitchOver(host="h", at=1))
    assert "restore --switch-over --name standby " in status("standby")["continue"]


def test_what_is_no_plan_or_was_not_begun_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_bytes(b"{}")
    Path("archive").mkdir()
    assert "plan.json is not the plan of a restore" in restore("--from-plan", "plan.json").stderr
    unknown = restore("--resume", "--name", "night")
    assert (unknown.exit_code, "there is no restore night" in unknown.stderr) == (2, True)
    for doing in (("--status",), ("--switch-over", "--yes")):
        unknown = restore(*doing, "--name", "night")
        assert (unknown.exit_code, "there is no restore night" in unknown.stderr) == (2, True)
    nameless = restore("--resume")
    assert (nameless.exit_code, "which restore is to be continued" in nameless.stderr) == (2, True)


@pytest.fixture
def root_topics(tmp_path: Path) -> Path:
    archive = ArchiveWriter(tmp_path)
    for topic in ("orders", "old"):
        archive.partition(topic, 0).commit(records(range(3)))
    put_topic_config(archive, "orders", 4, {"cleanup.policy": "compact", "remote.storage.enable": "true"})
    return tmp_path


class Topics:
    def __init__(self, root_topics: Path, cluster: MockCluster) -> None:
        self._options = ("-a", str(root_topics), "-b", cluster.bootstrap_servers)

    def __call__(self, *args: str) -> Result:
        return CliRunner().invoke(main, ["topics", *args, *self._options], prog_name="replayer")


@pytest.fixture
def topics(root_topics: Path, cluster: MockCluster) -> Topics:
    return Topics(root_topics, cluster)


def test_a_missing_topic_is_a_difference(topics: Topics) -> None:
    done = exited(topics("diff", "orders"), 3)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["TOPIC", "SETTING", "ARCHIVED", "LIVE"],
        ["orders", "topic", "4", "partitions", "missing"],
    ]
    assert "remote.storage.enable=true belonged to the old brokers" in done.stderr
    told = json.loads(topics("diff", "orders", "--json").stdout)
    assert told["equal"] is False
    assert told["topics"][0] | {"notes": []} == {
        "topic": "orders",
        "state": "missing",
        "partitions": {"archived": 4, "live": None},
        "differences": [],
        "notes": [],
    }


def test_a_topic_that_the_archive_says_nothing_of(topics: Topics) -> None:
    done = exited(topics("diff", "*"), 4)
    assert "orders" in done.stdout
    assert "the archive does not say what topic old was like" in done.stderr
    assert topics("diff", "nothing").exit_code == 4
    refused = exited(topics("apply", "*", "--yes"), 4)
    assert "is created" not in refused.stderr, "nothing is begun"


def test_a_plan_is_printed_and_nothing_is_done_without_consent(topics: Topics) -> None:
    planned = succeeded(topics("apply", "orders", "--dry-run", "--replication-factor", "2"))
    assert (
        "topic orders is created with 4 partitions, replication factor 2 and cleanup.policy=compact" in planned.stderr
    )
    told = json.loads(topics("apply", "orders", "--dry-run", "--json", "--ignore", "cleanup.policy").stdout)
    assert (told["dry_run"], told["topics"][0]["creates"]["partitions"], told["topics"][0]["done"]) == (True, 4, False)
    assert "cleanup.policy" not in told["topics"][0]["creates"]["config"]
    refused = exited(topics("apply", "orders"), 2)
    assert "no topic was changed" in refused.stderr
    assert "--yes" in refused.stderr


NOWHERE = "127.0.0.1:1"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "state" / "blockgz" / "jobs"


def make(place: Path, **changes: Any) -> JobFolder:
    folder = JobFolder(LocalStore(place), "j")
    folder.create(request(**{"created": True, "target_topic_id": "id", **changes}))
    return folder


def undo(*args: str, bootstrap: str = NOWHERE) -> Result:
    return CliRunner().invoke(main, ["undo", *args, "-b", bootstrap], prog_name="replayer")


def test_what_is_no_job_is_named(place: Path) -> None:
    assert undo("--job", "j").exit_code == 2
    make(place)
    for name in ("other", "..", "x/../j"):
        result = undo("--job", name, "--yes")
        assert (result.exit_code, "there is no job" in result.stderr) == (2, True)


def test_a_topic_that_was_there_before_stays(place: Path) -> None:
    make(place, created=False)
    result = exited(undo("--job", "j", "--yes"), 2)
    assert "topic copy existed before the job" in result.stderr


def test_a_job_that_runs_stays(place: Path) -> None:
    make(place)
    with held(place, "j"):
        result = undo("--job", "j", "--yes")
    assert result.exit_code == 11
    assert "replayer jobs cancel j" in result.stderr


def test_a_job_is_undone_once_and_listed_as_such(place: Path) -> None:
    make(place).put(UNDONE)
    result = exited(undo("--job", "j", "--yes"), 2)
    assert "job j was undone" in result.stderr
    assert "replayer jobs rm j" in result.stderr
    listed = CliRunner().invoke(main, ["jobs", "--json"], prog_name="replayer")
    assert [each["state"] for each in json.loads(listed.stdout)["jobs"]] == ["undone"]


def test_a_topic_that_is_gone_is_not_looked_for_under_another_name(place: Path) -> None:
    make(place)
    cluster = MockCluster()
    result = exited(undo("--job", "j", "--yes", bootstrap=cluster.bootstrap_servers), 1)
    assert "the topic no longer exists" in result.stderr
    cluster.create_topic("copy")
    result = exited(undo("--job", "j", "--yes", bootstrap=cluster.bootstrap_servers), 1)
    assert "the cluster does not tell its id" in result.stderr
    assert JobFolder(LocalStore(place), "j").get(JobUndone) is None
