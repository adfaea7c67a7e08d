"""Layers put together: precedence, origins, references, and errors that name field, value, place and remedy."""

from pathlib import Path

import pytest

from blockgz.config.files import Origin, OriginKind, Setting, Settings
from blockgz.config.resolution import Resolved, resolve
from blockgz.errors import UnresolvedReference, UsageError
from blockgz.references import check_references, has_reference, resolve_references
from index_format.errors import MASK


def layer(kind: OriginKind, place: str, **values: object) -> Settings:
    return {name: Setting(value, Origin(kind, place)) for name, value in values.items()}


REQUIRED = layer(OriginKind.FILE, "f.yaml:1", archive="./a", bootstrap_servers="h:9092", topics="orders")


def resolved(*layers: Settings, environ: dict[str, str] | None = None) -> Resolved:
    return resolve(REQUIRED, *layers, environ=environ or {})


def refused(*layers: Settings, environ: dict[str, str] | None = None) -> UsageError:
    with pytest.raises(UsageError) as caught:
        resolved(*layers, environ=environ)
    assert caught.value.exit_code == 2
    assert caught.value.why
    assert caught.value.remedy
    return caught.value


def file(**values: object) -> Settings:
    return layer(OriginKind.FILE, "f.yaml:7", **values)


def environment(**values: object) -> Settings:
    return layer(OriginKind.ENVIRONMENT, "BLOCKGZ_X", **values)


def flag(**values: object) -> Settings:
    return layer(OriginKind.FLAG, "--x", **values)


def test_flag_before_environment_before_file_before_default() -> None:
    layers = [file(memory="64MiB"), environment(memory="65MiB"), flag(memory="66MiB")]
    for count, (text, kind) in enumerate(
        [("256MiB", "default"), ("64MiB", "file"), ("65MiB", "env"), ("66MiB", "flag")]
    ):
        found = resolved(*layers[:count])
        assert found.config.memory == int(text.removesuffix("MiB")) * 1024**2
        assert found.shown()["memory"][1].kind.value == kind


def test_settings_of_librdkafka_merge_by_name() -> None:
    found = resolved(file(**{"kafka.debug": "all", "kafka.client.rack": "r"}), flag(**{"kafka.debug": "cgrp"}))
    assert found.config.kafka == {"debug": "cgrp", "client.rack": "r"}
    shown = {name: str(origin) for name, (_, origin) in found.shown().items() if name.startswith("kafka.")}
    assert shown == {"kafka.debug": "flag --x", "kafka.client.rack": "file f.yaml:7"}


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (file(memory="1 parsec"), "f.yaml:7: memory cannot be '1 parsec'"),
        (environment(memory="1 parsec"), "BLOCKGZ_X: memory cannot be '1 parsec'"),
        (flag(memory="1 parsec"), "--x cannot be '1 parsec'"),
        (file(on_gap="explode"), "f.yaml:7: on_gap cannot be 'explode'"),
        (file(region=None, memory=None), "f.yaml:7: memory cannot be None"),
        (file(topics=("a", "~(")), "f.yaml:7: topics cannot be 'a ~('"),
        (file(archive="nowhere"), "f.yaml:7: archive cannot be 'nowhere'"),
        (file(**{"kafka.group.id": "x"}), "f.yaml:7: kafka.group.id may not be set"),
        (flag(**{"kafka.group.id": "x"}), "-X group.id may not be set"),
        (file(storage_class="GLACIER"), "f.yaml:7: storage_class cannot be 'GLACIER'"),
        (flag(kms_key_id="x"), "sse None (default) and kms_key_id x (--x) cannot be combined"),
        (flag(layout="seed"), "layout seed (--x) and record_format json (default) cannot be combined"),
    ],
)
def test_errors_name_place_field_and_value(settings: Settings, what: str) -> None:
    assert refused(settings).what == what


def test_an_alias_is_named_as_it_was_written() -> None:
    settings = {"workers": Setting("0", Origin(OriginKind.FILE, "c.json:3", "tasks.max"))}
    assert refused(settings).what == "c.json:3: tasks.max cannot be '0'"


def test_the_remedy_says_what_is_wanted_and_where() -> None:
    assert refused(file(on_gap="x")).remedy == "write one of record, stop; correct it in f.yaml:7"
    assert "at least 32MiB" in refused(flag(memory="1B")).remedy


@pytest.mark.parametrize("field", ["archive", "bootstrap_servers", "topics"])
def test_what_is_missing_can_be_given_in_three_ways(field: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({name: setting for name, setting in REQUIRED.items() if name != field}, environ={})
    assert caught.value.what == f"{field} is not set"
    assert "BLOCKGZ_" in caught.value.remedy


def test_all_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        resolve({}, environ={})
    assert caught.value.what == "archive, bootstrap_servers and topics are not set"
    assert "add -a, -b and TOPIC" in caught.value.remedy


class TestReferences:
    def test_environment_and_files(self, tmp_path: Path) -> None:
        path = tmp_path / "secret"
        path.write_text("from the file\n")
        text = f"${{env:A}}-${{file:{path}}}-$${{env:A}}-$A"
        assert resolve_references(text, {"A": "a"}) == "a-from the file-${env:A}-$A"
        assert has_reference(text)

    @pytest.mark.parametrize("text", ["plain", "$env", "$${env:A}", "a$", "{env:A}"])
    def test_none(self, text: str) -> None:
        assert not has_reference(text)
        check_references(text)

    @pytest.mark.parametrize("text", ["${A}", "${evn:A}", "${env:}", "${env:A", "${", "${vault:x}"])
    def test_malformed(self, text: str) -> None:
        with pytest.raises(ValueError, match="not a reference"):
            check_references(text)
        assert "f.yaml:7: kafka.sasl.password" in refused(file(**{"kafka.sasl.password": text})).what

    @pytest.mark.parametrize("text", ["${env:NO_SUCH}", "${file:/no/such/file}"])
    def test_that_lead_nowhere(self, text: str) -> None:
        with pytest.raises(UnresolvedReference):
            resolve_references(text, {})
        assert refused(file(region=text)).what.startswith("f.yaml:7: region: the ")

    def test_a_relative_path(self) -> None:
        assert "absolute" in refused(file(region="${file:x}")).why

    def test_of_a_field_are_looked_up_and_masked(self) -> None:
        found = resolved(file(region="eu-${env:N}", topics=("${env:T}",)), environ={"N": "north-9", "T": "hidden"})
        assert (found.config.region, found.config.topics) == ("eu-north-9", ("hidden",))
        assert found.shown()["region"][0] == found.shown()["topics"][0] == MASK
        assert "north-9" not in repr(found)
        assert "hidden" not in repr(found)

    @pytest.mark.parametrize("url", ["http://user:hunter2@proxy:1", "http://user:${env:P}@proxy:1"])
    def test_the_password_of_a_proxy_is_masked(self, url: str) -> None:
        found = resolved(file(proxy_url=url), environ={"P": "hunter2"})
        assert found.config.s3.proxy_url == "http://user:hunter2@proxy:1"
        assert found.shown()["proxy_url"][0] == MASK and "hunter2" not in repr(found)

    def test_the_customer_key_is_looked_up_later_and_nothing_but_a_reference(self) -> None:
        found = resolved(file(archive="s3://backup/p", customer_key="${env:NO_SUCH}"))
        assert found.config.s3.customer_key == "${env:NO_SUCH}" and found.shown()["customer_key"][0] == MASK
        with pytest.raises(UnresolvedReference, match="customer_key"):
            found.check_secrets({})
        error = refused(file(archive="s3://backup/p", customer_key="aGlkZGVu"))
        assert "aGlkZGVu" not in error.what + error.why + error.remedy and "${file:/path}" in error.remedy
        error = refused(flag(archive="./archive", customer_key="${env:K}"))
        assert "archive ./archive (--x) and customer_key ******** (--x) cannot be combined" in error.what

    def test_of_librdkafka_are_looked_up_later(self) -> None:
        found = resolved(file(**{"kafka.client.rack": "${env:NO_SUCH}", "kafka.sasl.password": "plain"}))
        assert [found.shown()[f"kafka.{name}"][0] for name in ("client.rack", "sasl.password")] == [MASK, MASK]

    def test_a_wrong_value_that_came_from_one_is_not_shown(self) -> None:
        error = refused(file(memory="${env:SECRET}"), environ={"SECRET": "hunter2"})
        assert error.what == f"f.yaml:7: memory cannot be {MASK}"
        assert error.__cause__ is None
        assert "hunter2" not in error.what + error.why + error.remedy
