"""Fixtures of the system tests: servers that live as long as the session, and names that nobody else uses."""

import os
import re
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from system_test.support.archiving import Site, folder_site
from system_test.support.environment import PartMissingError, tool
from system_test.support.kafka_broker import KafkaBroker, kafka_jars
from system_test.support.object_store import MotoServer, VersityGateway, versitygw_program
from system_test.support.pages import Watched, chromium, chromium_program

_HERE = Path(__file__).parent
_TEST_SECONDS = 300
_LONGEST = (
    *("test_faults.py", "test_restore_standby.py", "test_spark_sink.py", "test_mutants.py", "test_semantics.py"),
    *("test_spark_republish.py", "test_sharing.py", "test_simulations.py", "test_spark_jobs.py", "test_page_jobs.py"),
    *("test_restore_story.py", "test_spark_source.py", "test_replay_faults.py", "test_story.py", "test_page.py"),
    *("test_spark_cluster.py", "test_job_proof.py", "test_records_in_hand.py"),
    *("test_undo.py", "test_acls.py", "test_reading_memory.py", "test_what_operators_see.py"),
    "test_two_archives.py",
)
"""In this order: what keeps the processors busy and what waits for brokers run beside each other."""


# A shell that starts pytest in the background has SIGINT ignored, and every program under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that none is left for the end alone; and the tests alone are timed.

    A fixture may have to fetch or build its server first, and has deadlines of its own.
    """
    place = {name: number for number, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))
    for item in items:
        if _HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TEST_SECONDS, func_only=True))


@contextmanager
def _required_parts() -> Iterator[None]:
    try:
        yield
    except PartMissingError as error:
        if os.environ.get("BLOCKGZ_REQUIRE_ALL") == "1":
            pytest.fail(f"required here, but missing: {error}", pytrace=False)
        pytest.skip(f"missing: {error}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Skip a test if a part is missing that one of its fixtures needs; with BLOCKGZ_REQUIRE_ALL=1 the test fails."""
    with _required_parts():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a test if a part is missing that the test itself needs; with BLOCKGZ_REQUIRE_ALL=1 the test fails."""
    with _required_parts():
        return (yield)


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """The running broker; a test that stops it starts it again."""
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture
def own_broker() -> Iterator[KafkaBroker]:
    """A running broker of the test's own, which it may kill, or whose logs it may break."""
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def new_broker() -> Iterator[KafkaBroker]:
    """A cluster to restore into, which takes records of 1 MB unless a topic says otherwise."""
    with KafkaBroker({"message.max.bytes": "1048588"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def broker_with_rights() -> Iterator[KafkaBroker]:
    """A running broker that allows everything that no test denies."""
    rights = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with KafkaBroker(rights) as broker:
        yield broker


@pytest.fixture(scope="session")
def moto() -> Iterator[MotoServer]:
    with MotoServer() as server:
        yield server


@pytest.fixture(scope="session")
def versitygw() -> Iterator[VersityGateway]:
    with VersityGateway() as gateway:
        yield gateway


@pytest.fixture(scope="session")
def server_programs() -> None:
    """What programs that start servers of their own need is at hand."""
    kafka_jars()
    versitygw_program()


@pytest.fixture(scope="session")
def kcat() -> str:
    return tool("kcat")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser; of a module, because no event loop runs beside its own."""
    with chromium(chromium_program()) as opened:
        yield opened


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    """A page in which nothing goes wrong."""
    allowed = ["clipboard-read", "clipboard-write"]
    context = browser.new_context(viewport={"width": 1240, "height": 900}, permissions=allowed)
    page = Watched(context.new_page())
    yield page
    context.close()
    assert page.errors == []


@pytest.fixture(scope="session")
def broker_site(broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The broker and an archive in a folder that tests share, each with topics of its own."""
    return folder_site(broker.bootstrap, tmp_path_factory.mktemp("shared") / "archive")


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A topic name with the test's name in it that no other test has."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:60]
    return f"{readable}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def site(broker: KafkaBroker, tmp_path: Path) -> Site:
    """The broker, an archive in a new folder of the test's own, and a home of its own for jobs."""
    return folder_site(broker.bootstrap, tmp_path / "archive")
