"""deploy/: its metrics, alerts, options, variables, paths and periods are those of the programs and of docs/."""

import re
import shlex
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from archiver.monitor.server import PATHS, make_registry
from blockgz.config.kinds import FIELDS
from blockgz.units import parse_duration
from tests.support.deployment import (
    CHART,
    COMMANDS,
    COMPOSE,
    DASHBOARD,
    DEPLOY,
    DOCKERFILE,
    EXPRESSIONS,
    ROOT,
    copied_sources,
    unknown_options,
)
from tests.support.snapshots import service

UNITS = {name: (DEPLOY / "systemd" / f"blockgz-{name}.service").read_text() for name in ("archiver", "page")}
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule["alert"] for rule in RULES]
METRIC = re.compile(r"\b(?:blockgz|process)_[a-z_]+")
GRACE_OVERHEAD = 5


def metrics(*texts: str) -> set[str]:
    return {name for text in texts for name in METRIC.findall(text)}


def served_metrics() -> set[str]:
    suffixes = {"counter": "_total", "info": "_info"}
    return {family.name + suffixes.get(family.type, "") for family in make_registry(service).collect()}


def help_page(program: str) -> str:
    return CliRunner().invoke(COMMANDS[program], [program.split()[1], "--help"]).output


def unit_command(unit: str) -> list[str]:
    line = re.search(r"^ExecStart=/opt/blockgz/bin/(.+)$", UNITS[unit], re.MULTILINE)
    assert line is not None
    return shlex.split(line[1])


def template_command(part: str) -> list[str]:
    """The arguments in a template, with what Helm puts in left as it is."""
    text = (CHART / "templates" / f"{part}.yaml").read_text().partition("args:")[2].partition("ports:")[0]
    return re.findall(r"^ +- (?!name)([^{\n].*)$", text, re.MULTILINE)


def written_commands() -> Iterator[tuple[str, list[str]]]:
    for part in ("archiver", "page"):
        yield f"compose: {part}", COMPOSE[part]["command"]
        yield f"systemd: {part}", unit_command(part)
        yield f"helm: {part}", template_command(part)


def value(arguments: list[str], option: str) -> str:
    """Of an option, written `--name=value` or as two arguments."""
    text = " ".join(arguments).replace(f"{option} ", f"{option}=")
    found = re.search(rf"{option}=(\S+)", text)
    assert found is not None, f"{option} in {text}"
    return found[1]


def test_metrics_exist() -> None:
    named = metrics(*(rule["expr"] for rule in RULES), *EXPRESSIONS)
    named |= metrics((DEPLOY / "prometheus" / "rules_test.yaml").read_text())
    assert named
    assert named - served_metrics() == set()


def test_the_dashboard_shows_every_metric() -> None:
    queries = [
        variable["query"]["query"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"
    ]
    assert served_metrics() - metrics(*EXPRESSIONS, *queries) == set()


def test_panels_say_what_they_show() -> None:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert [panel["title"] for panel in panels if not (panel["title"] and panel["description"])] == []


def test_every_example_alert_is_a_rule() -> None:
    table = (ROOT / "docs" / "monitoring.md").read_text().partition("## Metrics")[2].partition("## Log")[0]
    rows = re.findall(r"^\| `(\w+)` \| (?:gauge|counter) \| .* \|(.*)\|$", table, re.MULTILINE)
    with_example = {name for name, example in rows if example.strip()}
    assert len(with_example) > 25
    assert with_example - metrics(*(rule["expr"] for rule in RULES)) == set()


def test_alerts_say_how_urgent_they_are_and_what_to_do() -> None:
    assert len(set(ALERTS)) == len(ALERTS)
    assert {rule["labels"]["severity"] for rule in RULES} == {"critical", "warning", "info"}
    assert [rule["alert"] for rule in RULES if not rule["annotations"]["summary"].endswith((".", ".)"))] == []


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_is_tested_firing_and_not_firing(alert: str) -> None:
    tests = yaml.safe_load((DEPLOY / "prometheus" / "rules_test.yaml").read_text())["tests"]
    outcomes = [
        bool(each["exp_samples"])
        for test in tests
        for each in test["promql_expr_test"]
        if f'alertname="{alert}", alertstate="firing"' in each["expr"]
    ]
    assert outcomes == [False, True]


@pytest.mark.parametrize(("place", "arguments"), tuple(written_commands()))
def test_options_exist(place: str, arguments: list[str]) -> None:
    assert unknown_options(arguments) == set(), place


@pytest.mark.parametrize(("name", "program"), [("archiver", "archiver run"), ("page", "replayer serve")])
def test_variables_exist(name: str, program: str) -> None:
    text = (DEPLOY / "systemd" / f"{name}.env").read_text()
    variables = set(re.findall(r"^(\w+)=", text, re.MULTILINE))
    assert variables
    assert variables - set(re.findall(r"BLOCKGZ_\w+", help_page(program))) == set()


def test_values_configure_what_exists() -> None:
    configured = yaml.safe_load((CHART / "values.yaml").read_text())["config"]
    assert {"archive", "bootstrap_servers", "topics"} <= set(configured) <= set(FIELDS)


def test_kills_come_after_the_grace() -> None:
    """As docs/monitoring.md promises."""
    compose = COMPOSE["archiver"]
    grace = parse_duration(value(compose["command"], "--grace"))
    assert parse_duration(compose["stop_grace_period"]) >= grace + GRACE_OVERHEAD
    timeout = re.search(r"^TimeoutStopSec=(\d+)$", UNITS["archiver"], re.MULTILINE)
    assert timeout is not None
    assert int(timeout[1]) >= parse_duration(value(unit_command("archiver"), "--grace")) + GRACE_OVERHEAD


def test_replays_outlive_the_page() -> None:
    assert "\nKillMode=process\n" in UNITS["page"]
    assert "PrivateTmp=yes" not in UNITS["page"], "it would be removed under them"


def test_probes_ask_for_what_is_served() -> None:
    archiver_asked = re.findall(r"path: (/\w+)", (CHART / "templates" / "archiver.yaml").read_text())
    assert set(archiver_asked) == {"/readyz", "/healthz"} <= set(PATHS)
    assert '"path" "/healthz"' in (CHART / "templates" / "page.yaml").read_text()
    for name, port in (("archiver", 9464), ("page", 8080)):
        assert f"http://127.0.0.1:{port}/healthz" in COMPOSE[name]["healthcheck"]["test"][-1]


@pytest.mark.parametrize(("name", "port"), [("archiver", "9464"), ("page", "8080")])
def test_ports_are_the_same_everywhere(name: str, port: str) -> None:
    compose = COMPOSE[name]
    for arguments in (compose["command"], unit_command(name), template_command(name)):
        assert value(arguments, "--http").endswith(f":{port}")
    assert compose["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"containerPort: {port}" in (CHART / "templates" / f"{name}.yaml").read_text()
    assert f"archiver:{9464}" in value(COMPOSE["page"]["command"], "--archiver")


def test_the_image_is_made_of_all_packages() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    packages = {line.rstrip("*") for line in setup["options.packages.find"]["include"].split()}
    modules = {f"{name}.py" for name in setup["options"]["py_modules"].split()}
    build = {"setup.cfg", "setup.py", "pyproject.toml", "MANIFEST.in", "constraints.txt"}
    sources = copied_sources()
    assert packages | modules | build <= sources
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_build_is_sent_what_the_image_is_made_of() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    kept = [line[1:] for line in lines if line.startswith("!")]
    assert "*" in lines
    assert {source for source in copied_sources() if not any(Path(source).match(each) for each in kept)} == set()


def test_what_compose_mounts_belongs_to_the_user_of_the_image() -> None:
    """A volume takes its owner from the folder of the image below it."""
    made = set(re.findall(r"/var/lib/blockgz/\w+", DOCKERFILE))
    mounts = {volume.split(":")[1] for name in ("archiver", "page") for volume in COMPOSE[name]["volumes"]}
    assert mounts <= made


def test_the_chart_has_the_rules_of_prometheus() -> None:
    assert (CHART / "files" / "rules.yaml").resolve() == DEPLOY / "prometheus" / "rules.yaml"


def test_the_chart_is_of_this_version() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    chart: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == setup["metadata"]["version"]


def leaves(values: dict[str, Any]) -> Iterator[str]:
    """The last names of values; what is passed on as it is, such as `resources`, is one value."""
    for name, below in values.items():
        if isinstance(below, dict) and below and name not in ("config", "resources"):
            yield from leaves(below)
        else:
            yield name


def test_values_are_used() -> None:
    templates = "\n".join(path.read_text() for path in (CHART / "templates").iterdir())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    passed_on = {name: values.pop(name) for name in ("podSecurityContext", "securityContext")}
    assert [name for name in (*leaves(values), *passed_on) if not re.search(rf"[.\"]{name}\b", templates)] == []
