"""What deploy/ holds, read as far as tests on it need, and the options of the programs it runs."""

import json
import re
from pathlib import Path

import click
import yaml

from archiver.cli import main as archiver
from replayer.cli import main as replayer

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "blockgz"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
DASHBOARD = json.loads((DEPLOY / "grafana" / "blockgz.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
"""Of the dashboard."""
COMMANDS = {"archiver run": archiver, "replayer serve": replayer}


def options(program: str) -> set[str]:
    """All names of options of `archiver run` or `replayer serve`."""
    group, name = COMMANDS[program], program.split()[1]
    found = group.get_command(click.Context(group), name)
    assert found is not None
    return {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)}


def unknown_options(arguments: list[str]) -> set[str]:
    """Options of a command line, beginning with program and command, that the command does not have."""
    used = set(re.findall(r"(?<![\w-])--[a-z-]+", " ".join(arguments)))
    assert "--http" in used
    return used - options(" ".join(arguments[:2]))


def copied_sources() -> set[str]:
    """What the Dockerfile copies from the repository."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
    return {source for line in lines for source in line.split()[:-1]}
