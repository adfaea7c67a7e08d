"""deploy/ as its tools see it: alerts by promtool, the chart by helm, units by systemd, the image's steps and compose's
commands run without Docker."""

import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from system_test.support.environment import (
    PartMissingError,
    ToolFailedError,
    cache_folder,
    filled_once,
    free_port,
    run_tool,
    tool,
)
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import Running, run, start
from system_test.support.topics import NewRecord, fill_topic
from tests.support.deployment import (
    CHART,
    COMPOSE,
    DEPLOY,
    DOCKERFILE,
    EXPRESSIONS,
    ROOT,
    copied_sources,
    unknown_options,
)
from tests.support.sampling import LONG

long = pytest.mark.skipif(not LONG, reason="minutes: make deployment runs it")

HELM_VERSION = "v3.19.5"
BUILD_SECONDS = 1800.0
INSTALL_SECONDS = 600.0
TOOL_SECONDS = 60.0
MOST_EXPOSURE = 20
"""Tenths of a point of `systemd-analyze security`, where 100 is a unit without any restriction."""

REQUIRED: dict[str, Any] = {
    "image": {"repository": "registry.example/blockgz"},
    "config": {"archive": "s3://backup/kafka", "bootstrap_servers": "broker:9092"},
}
EVERYTHING: dict[str, Any] = {
    "image": {"repository": "registry.example/blockgz", "tag": "1", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "config": {
        "archive": "s3://backup/kafka",
        "bootstrap_servers": "broker:9093",
        "topics": ["orders", "~eu[.].+"],
        "chunk_interval": "10m",
        "kafka": {"security.protocol": "SSL", "ssl.key.password": "${env:KEY_PASSWORD}"},
    },
    "env": [{"name": "KEY_PASSWORD", "valueFrom": {"secretKeyRef": {"name": "kafka", "key": "password"}}}],
    "extraVolumes": [{"name": "ca", "secret": {"secretName": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/kafka", "readOnly": True}],
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/archiver"}},
    "archiver": {
        "replicas": 3,
        "graceSeconds": 90,
        "staticMembership": True,
        "extraArgs": ["--codec=zstd"],
        "buffer": {"persistence": {"enabled": True, "storageClass": "fast"}},
        "podLabels": {"team": "data"},
        "podAnnotations": {"note": "x"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"operator": "Exists"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        "priorityClassName": "high",
    },
    "page": {
        "enabled": True,
        "tokenSecret": {"name": "token"},
        "allowReplay": True,
        "allowedHosts": ["archive.example"],
        "jobs": "s3://backup/jobs",
        "persistence": {"enabled": True, "storageClass": "fast"},
        "extraArgs": ["--key=/etc/kafka/key.pem"],
    },
    "monitoring": {
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    },
}
READ_ONLY_PAGE = {
    **REQUIRED,
    "serviceAccount": {"create": False},
    "page": {"enabled": True, "tokenSecret": {"name": "token", "key": "t"}},
}
VALUES = {"required ones": REQUIRED, "everything": EVERYTHING, "a page that only reads": READ_ONLY_PAGE}


@pytest.fixture(scope="session")
def promtool() -> Iterator[str]:
    """The one on PATH, or that of Debian's package, which need not be installed."""

    def unpack(folder: Path) -> None:
        download, package = f"cd {folder} && {tool('apt-get')} download prometheus", "prometheus_*.deb"
        unpacking = f"dpkg-deb --fsys-tarfile {package} | tar -x ./usr/bin/promtool && rm {package}"
        run_tool(["sh", "-c", f"{download} && {unpacking}"], seconds=INSTALL_SECONDS)

    try:
        program = tool("promtool")
    except PartMissingError:
        program = str(filled_once(cache_folder() / "prometheus", unpack) / "usr/bin/promtool")
    yield program


@pytest.fixture(scope="session")
def helm() -> Iterator[str]:
    """The one on PATH, or one built with Go into the cache (minutes)."""

    def build(folder: Path) -> None:
        module = f"helm.sh/helm/v3/cmd/helm@{HELM_VERSION}"
        run_tool([tool("go"), "install", module], seconds=BUILD_SECONDS, env={"GOBIN": str(folder)})

    try:
        program = tool("helm")
    except PartMissingError:
        program = str(filled_once(cache_folder() / f"helm-{HELM_VERSION}", build) / "helm")
    yield program


def test_alerts(promtool: str) -> None:
    """Each fires and does not fire as rules_test.yaml says."""
    folder = DEPLOY / "prometheus"
    run_tool([promtool, "check", "rules", str(folder / "rules.yaml")], seconds=TOOL_SECONDS)
    assert "SUCCESS" in run_tool([promtool, "test", "rules", str(folder / "rules_test.yaml")], seconds=TOOL_SECONDS)


def test_the_dashboard_asks_what_prometheus_understands(promtool: str, tmp_path: Path) -> None:
    queries = [re.sub(r"\$__(rate_interval|range)", "5m", expression) for expression in EXPRESSIONS]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    written = tmp_path / "rules.yaml"
    written.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(queries)} rules found" in run_tool([promtool, "check", "rules", str(written)], seconds=TOOL_SECONDS)


def rendered(helm: str, values: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    text = run_tool([helm, "template", "release", str(CHART), "--values", str(file)], seconds=TOOL_SECONDS)
    return [each for each in yaml.safe_load_all(text[text.index("---") :]) if each is not None]


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = [each["spec"]["template"]["spec"] for each in objects if each["kind"] in ("StatefulSet", "Deployment")]
    return {pod["containers"][0]["name"]: pod for pod in found}


@long
@pytest.mark.timeout(BUILD_SECONDS, func_only=True)
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_charts(helm: str, values: dict[str, Any], tmp_path: Path) -> None:
    objects = rendered(helm, values, tmp_path)
    file = tmp_path / "values.json"
    assert "0 chart(s) failed" in run_tool(
        [helm, "lint", "--strict", str(CHART), "--values", str(file)], seconds=TOOL_SECONDS
    )
    config = tmp_path / "config.yaml"
    config.write_text(of_kind(objects, "ConfigMap")["data"]["config.yaml"])
    run("archiver", "config", "check", config)
    assert {"archiver"} <= set(pods(objects)) <= {"archiver", "page"}
    for pod in pods(objects).values():
        (container,) = pod["containers"]
        assert unknown_options(container["args"]) == set()
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes(objects, pod)
        assert {"path", "port"} <= set(container["livenessProbe"]["httpGet"])
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert [variable for variable in container.get("env", ()) if variable.get("value")] == []
    grace = values.get("archiver", {}).get("graceSeconds", 25)
    archiver = pods(objects)["archiver"]
    assert f"--grace={grace}s" in archiver["containers"][0]["args"]
    assert archiver["terminationGracePeriodSeconds"] == grace + 5


def volumes(objects: list[dict[str, Any]], pod: dict[str, Any]) -> set[str]:
    claims = of_kind(objects, "StatefulSet")["spec"].get("volumeClaimTemplates", ())
    return {volume["name"] for volume in pod["volumes"]} | {claim["metadata"]["name"] for claim in claims}


@long
@pytest.mark.timeout(BUILD_SECONDS, func_only=True)
def test_the_chart_as_a_whole(helm: str, tmp_path: Path) -> None:
    objects = rendered(helm, EVERYTHING, tmp_path)
    rule = of_kind(objects, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())
    monitor = of_kind(objects, "PodMonitor")["spec"]
    labels = of_kind(objects, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    ports = [port["name"] for port in pods(objects)["archiver"]["containers"][0]["ports"]]
    assert [end["port"] for end in monitor["podMetricsEndpoints"]] == ports
    services = {each["metadata"]["name"] for each in objects if each["kind"] == "Service"}
    page = pods(objects)["page"]["containers"][0]["args"]
    asked = [argument.partition("://")[2] for argument in page if argument.startswith("--archiver=")]
    assert asked == [f"release-blockgz-archiver-{number}.release-blockgz-archiver:9464" for number in range(3)]
    assert services == {"release-blockgz-archiver", "release-blockgz-page"}
    assert "--allow-replay" in page
    read_only = pods(rendered(helm, READ_ONLY_PAGE, tmp_path))["page"]["containers"][0]["args"]
    assert "--allow-replay" not in read_only


@long
@pytest.mark.timeout(BUILD_SECONDS, func_only=True)
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "config.archive is required"),
        ({"config": REQUIRED["config"]}, "image.repository is required"),
        ({**REQUIRED, "page": {"enabled": True}}, "page.tokenSecret.name is required"),
        ({**REQUIRED, "archiver": {"replica": 3}}, "replica"),
        ({**REQUIRED, "archiver": {"graceSeconds": "25s"}}, "graceSeconds"),
    ],
    ids=["no archive", "no image", "a page without a token", "an unknown value", "a wrong type"],
)
def test_charts_that_are_refused(helm: str, values: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ToolFailedError, match=said):
        rendered(helm, values, tmp_path)


@long
@pytest.mark.parametrize("unit", ["blockgz-archiver.service", "blockgz-page.service"])
def test_units(unit: str, tmp_path: Path) -> None:
    """The programs are those of this environment: systemd looks whether they are there."""
    analyze = tool("systemd-analyze")
    written = tmp_path / unit
    text = (DEPLOY / "systemd" / unit).read_text()
    written.write_text(text.replace("/opt/blockgz/bin", str(Path(sys.executable).parent)))
    said = run_tool([analyze, "verify", "--man=no", str(written)], seconds=TOOL_SECONDS).splitlines()
    # systemd before 254 restarts at one pace; it ignores both settings.
    newer = re.compile("Unknown key '(RestartSteps|RestartMaxDelaySec)' in section .Service., ignoring")
    assert [line for line in said if not newer.search(line)] == []
    run_tool(
        [analyze, "security", "--offline=true", f"--threshold={MOST_EXPOSURE}", str(written)], seconds=TOOL_SECONDS
    )


@long
@pytest.mark.timeout(INSTALL_SECONDS, func_only=True)
def test_the_steps_of_the_image(tmp_path: Path) -> None:
    """What the Dockerfile copies, and nothing else, becomes both programs with their extensions."""
    source = tmp_path / "src"
    source.mkdir()
    for name in copied_sources():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / name, source)
    building = DOCKERFILE.split("\nFROM ")[1]
    steps = [step for step in re.findall(r"^RUN (.+)$", building, re.MULTILINE) if "apt-get" not in step]
    assert len(steps) == 4
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for step in steps:
        here = step.replace("/opt/blockgz", f"{tmp_path}/opt").replace("/wheel", f"{tmp_path}/wheel")
        command = f"set -e; cd {source}; {here}"
        output = run_tool(["sh", "-c", command], seconds=INSTALL_SECONDS, env={"PATH": path, "PYTHONPATH": ""})
    assert "in use" in output
    assert {"archiver", "replayer"} <= {program.name for program in (tmp_path / "opt" / "bin").iterdir()}


def answer(url: str, token: str = "") -> bytes | None:
    """The body of a good answer."""
    try:
        with urlopen(Request(url, headers={"Authorization": f"Bearer {token}"}), timeout=10) as response:
            body: bytes = response.read()
            return body
    except (OSError, HTTPException):
        return None


@long
def test_the_commands_of_compose(own_broker: KafkaBroker, tmp_path: Path) -> None:
    """They archive a topic and show it, on other paths and ports."""
    fill_topic(
        own_broker.bootstrap, "orders", [NewRecord(b"v", partition=number % 2) for number in range(10)], partitions=2
    )
    archiver_port = free_port()
    page_port = free_port(archiver_port)
    token = tmp_path / "page-token"
    token.write_text(secrets.token_hex(32))
    here = {
        "/var/lib/blockgz": str(tmp_path),
        "kafka:19092": own_broker.bootstrap,
        "/run/secrets/page-token": str(token),
        "0.0.0.0:9464": f"127.0.0.1:{archiver_port}",
        "archiver:9464": f"127.0.0.1:{archiver_port}",
        "0.0.0.0:8080": f"0.0.0.0:{page_port}",
    }

    def service(name: str) -> Running:
        program, *arguments = COMPOSE[name]["command"]
        for theirs, ours in here.items():
            arguments = [argument.replace(theirs, ours) for argument in arguments]
        return start(program, *arguments, env={"XDG_STATE_HOME": f"{tmp_path}/state"})

    base, page_base = f"http://127.0.0.1:{archiver_port}", f"http://127.0.0.1:{page_port}"
    with service("archiver") as archiver:
        archiver.wait_for(lambda: answer(f"{base}/readyz"), 60, "a ready archiver")
        with service("page") as page:
            page.wait_for(lambda: answer(f"{page_base}/healthz"), 60, "a page")
            assert answer(f"{page_base}/api/v1/topics") is None, "without a token"
            known = page.wait_for(lambda: answer(f"{page_base}/api/v1/topics", token.read_text()), 60, "topics")
            assert b"orders" in known
            seen = page.wait_for(lambda: answer(f"{page_base}/api/v1/archivers", token.read_text()), 60, "archivers")
            assert str(archiver_port).encode() in seen
            assert page.terminate().exit_code == 0
        assert archiver.terminate().exit_code == 0
    found = run("replayer", "ls", "--json", "-a", f"file://{tmp_path}/archive").stdout
    assert '"records":10' in found.replace(" ", "")
