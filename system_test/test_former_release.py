"""A release that knows only version 1 of the marker, and the present one, on the same archive.

The former release comes out of the repository's history, and runs from its source.
"""

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from system_test.support.archiving import Site
from system_test.support.programs import Completed, Running, run
from system_test.support.topics import NewRecord, create_topic, produce
from tests.support.sampling import in_long_run

FORMER = "1453bf59be85c3ffdd0ef1e9325f96c4dadbdc64"
"""The last commit whose programs know only version 1 of the marker: its child reads and writes version 2 as well."""
PACKAGES = ("archiver", "blockgz_runtime", "index_format", "replayer")
ROOT = Path(__file__).parent.parent
BEGAN = 1_760_000_000_000
CHUNKS = 70
"""So many that 64 are in a catalog."""
CHUNK_RECORDS = 5
SMALL_CHUNKS = ("--chunk-records", CHUNK_RECORDS)

pytestmark = [in_long_run, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Former:
    """The former release."""

    folder: Path

    def run(self, program: str, *arguments: object, check: int | None = 0) -> Completed:
        """One of its programs, to its end; see programs.run."""
        command = (sys.executable, "-P", "-m", program, *map(str, arguments))
        with Running(command, {"PYTHONPATH": str(self.folder)}, self.folder) as running:
            done = running.wait(60)
        return done if check is None else done.expect(check)


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Former:
    git = shutil.which("git")
    if git is None:
        pytest.skip("no `git` on PATH")
    if subprocess.run([git, "-C", str(ROOT), "cat-file", "-e", f"{FORMER}^{{commit}}"], check=False).returncode:
        pytest.skip(f"the history lacks commit {FORMER[:7]}, as in a shallow clone: git fetch --unshallow")
    command = [git, "-C", str(ROOT), "archive", "--format=tar", FORMER, *PACKAGES]
    done = subprocess.run(command, capture_output=True, check=False)
    assert not done.returncode, done.stderr.decode()
    folder = tmp_path_factory.mktemp("former")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tree:
        tree.extractall(folder, filter="data")
    release = Former(folder)
    shown = release.run("archiver", "run", "--help")
    assert "archiver run" in shown.stdout
    assert release.run("archiver", "prune", "--help", check=None).exit_code, "this release prunes: it is not the former"
    return release


def fill(site: Site, topic: str, start: int, stop: int) -> None:
    rows = [NewRecord(b"value %d" % n, key=b"k%d" % (n % 7), timestamp=BEGAN + n) for n in range(start, stop)]
    produce(site.bootstrap, topic, rows)


def archived_by(former: Former, site: Site, topic: str) -> None:
    former.run("archiver", "run", topic, "--once", *SMALL_CHUNKS, *site.kafka, *site.archive)


def value_at(done: Completed) -> str:
    (line,) = done.stdout.splitlines()
    value: str = json.loads(line)["value"]
    return value


def digest(site: Site) -> dict[str, str]:
    """Every object of an archive in a folder but the topics' settings, which each run stores as it finds them."""
    home = Path(site.address)
    files = [path for path in home.rglob("*") if path.is_file() and not path.name.startswith((".", "_topic_config"))]
    return {str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def rewritten(site: Site, topic: str, how: Sequence[str]) -> None:
    run("archiver", *how, topic, *site.archive, "--yes")
    assert site.marker(topic)["version"] == 2


def test_what_nobody_rewrote_is_continued_by_either_release(former: Former, site: Site, topic_name: str) -> None:
    create_topic(site.bootstrap, topic_name, 1)
    records = CHUNKS * CHUNK_RECORDS
    fill(site, topic_name, 0, records)
    site.once(topic_name, *SMALL_CHUNKS)
    assert (site.marker(topic_name)["version"], len(site.marker(topic_name)["catalogs"])) == (1, 1)

    fill(site, topic_name, records, records + 50)
    archived_by(former, site, topic_name)
    assert site.marker(topic_name)["next_offset"] == records + 50
    former.run("archiver", "gc", *site.archive, "--yes")
    former.run("replayer", "verify", topic_name, *site.archive)
    for offset in (0, records - 1, records + 49):
        found = former.run("replayer", "get", f"{topic_name}:0:{offset}", *site.archive, "--json")
        assert value_at(found) == f"value {offset}"

    fill(site, topic_name, records + 50, records + 400)
    site.once(topic_name, *SMALL_CHUNKS)
    assert site.marker(topic_name)["version"] == 1
    site.exact(topic_name)
    site.replayer("verify", topic_name)


@pytest.mark.parametrize("how", [("prune", "--keep-bytes", "1"), ("compact",)], ids=["pruned", "compacted"])
def test_what_was_rewritten_is_refused_and_left_alone(
    former: Former, site: Site, topic_name: str, how: Sequence[str]
) -> None:
    create_topic(site.bootstrap, topic_name, 1)
    fill(site, topic_name, 0, CHUNKS * CHUNK_RECORDS)
    site.once(topic_name, *SMALL_CHUNKS)
    rewritten(site, topic_name, how)
    fill(site, topic_name, CHUNKS * CHUNK_RECORDS, CHUNKS * CHUNK_RECORDS + 50)
    before = digest(site)

    last = CHUNKS * CHUNK_RECORDS - 1
    for done in (
        former.run("archiver", "run", topic_name, "--once", *SMALL_CHUNKS, *site.kafka, *site.archive, check=None),
        former.run("archiver", "gc", *site.archive, "--yes", check=None),
        former.run("replayer", "get", f"{topic_name}:0:{last}", *site.archive, check=None),
    ):
        assert done.exit_code, done.transcript
        assert "use a newer release of blockgz" in done.stderr, done.transcript
    verified = former.run("replayer", "verify", topic_name, *site.archive, check=None)
    assert verified.exit_code and "still readable: nothing" in verified.stdout
    assert digest(site) == before

    site.once(topic_name, *SMALL_CHUNKS)
    site.replayer("verify", topic_name)


@pytest.mark.parametrize("how", [("prune", "--keep-bytes", "1"), ("compact",)], ids=["pruned", "compacted"])
def test_what_the_former_release_wrote_is_continued_and_rewritten(
    former: Former, site: Site, topic_name: str, how: Sequence[str]
) -> None:
    create_topic(site.bootstrap, topic_name, 1)
    records = CHUNKS * CHUNK_RECORDS
    fill(site, topic_name, 0, records)
    archived_by(former, site, topic_name)
    site.replayer("verify", topic_name)
    fill(site, topic_name, records, records + 50)
    site.once(topic_name, *SMALL_CHUNKS)
    site.exact(topic_name)

    rewritten(site, topic_name, how)
    floor = site.marker(topic_name)["maintenance"]["pruned_before"]
    assert floor == (64 * CHUNK_RECORDS if how[0] == "prune" else 0)
    site.replayer("verify", topic_name)
    for offset in (floor, records + 49):
        assert value_at(site.replayer("get", f"{topic_name}:0:{offset}", "--json")) == f"value {offset}"
