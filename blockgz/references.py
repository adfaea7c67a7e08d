"""Values that stand elsewhere: `${env:NAME}` and `${file:/path}` refer to one; `$${` is a plain `${`."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from blockgz.errors import UnresolvedReference, UsageError

KINDS = "${env:NAME} and ${file:/path}"
_PATTERN = re.compile(r"\$\$\{|\$\{([^}]*)\}?")


def has_reference(text: str) -> bool:
    return bool(references_in(text))


def check_references(text: str) -> None:
    """Raise ValueError for a reference of an unknown kind; looks nothing up."""
    _replace(text, lambda _kind, _name: "")


def references_in(text: str) -> list[str]:
    """Return the references of a text, as they are written."""
    return [match[0] for match in _PATTERN.finditer(text) if match[0] != "$${"]


def resolve_references(text: str, environ: Mapping[str, str]) -> str:
    """Return the text with the values of its references. Raises UnresolvedReference or ValueError."""

    def look_up(kind: str, name: str) -> str:
        return _from_environment(name, environ) if kind == "env" else _from_file(name)

    return _replace(text, look_up)


@contextmanager
def naming(setting: str, remedy: str) -> Iterator[None]:
    """Name the setting in errors about references: UnresolvedReference, and UsageError for a malformed one."""
    try:
        yield
    except UnresolvedReference as error:
        raise UnresolvedReference(f"{setting}: {error.what}", why=error.why, remedy=error.remedy) from error
    except ValueError as error:
        raise UsageError(f"{setting} cannot be read", why=str(error), remedy=remedy) from error


def _replace(text: str, look_up: Callable[[str, str], str]) -> str:
    def replacement(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        kind, separator, name = match[1].partition(":")
        if kind not in ("env", "file") or not separator or not name or not match[0].endswith("}"):
            raise ValueError(f"{match[0][:80]} is not a reference; use {KINDS}, or $${{ stands for a plain ${{")
        return look_up(kind, name)

    return _PATTERN.sub(replacement, text)


def _from_environment(name: str, environ: Mapping[str, str]) -> str:
    if name not in environ:
        raise UnresolvedReference(
            f"the environment variable {name} is not set",
            why=f"the configuration refers to it as ${{env:{name}}}",
            remedy=f"set {name} where the program runs",
        )
    return environ[name]


def _from_file(name: str) -> str:
    path = Path(name).expanduser()
    if not path.is_absolute():
        raise ValueError(f"${{file:{name}}} is not an absolute path")
    try:
        return path.read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UnresolvedReference(
            f"the file {name} cannot be read",
            why=f"the configuration refers to it as ${{file:{name}}}: {reason}",
            remedy="put the value there, readable by the program, without a line break",
        ) from error
