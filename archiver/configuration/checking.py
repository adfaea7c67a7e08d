"""Checking a configuration file where it will not be run: what is missing there is noted, what is wrong is an error."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import UnresolvedReference
from .files import read_config_file
from .kinds import FIELDS
from .origins import DEFAULT, Setting, Settings
from .resolution import Resolved, looked_up, option_name, resolve

STAND_INS: Mapping[str, str] = {"archive": "./archive", "bootstrap_servers": "localhost:9092", "topics": "orders"}
"""For required fields that a file leaves to flags and environment, so that the rest can be checked."""


@dataclass(frozen=True)
class CheckedFile:
    """A file that is right. In `resolved` stand-ins take the place of what the file leaves open."""

    resolved: Resolved
    notes: tuple[str, ...]


def check_config_file(path: Path, environ: Mapping[str, str]) -> CheckedFile:
    """Raises UsageError for what would keep any run from starting with this file."""
    file = read_config_file(path)
    settings: Settings = {}
    notes = list(file.notes)
    for name, setting in file.settings.items():
        try:
            looked_up(name, setting, environ)
        except UnresolvedReference as error:
            notes.append(error.what)
            if name in FIELDS:
                continue
        settings[name] = setting
    for field, value in STAND_INS.items():
        if field not in settings:
            settings[field] = Setting(value, DEFAULT)
        if field not in file.settings:
            notes.append(f"{path} leaves {field} to {option_name(field)} or the environment")
    return CheckedFile(resolve(settings, environ=environ), tuple(notes))
