"""Settings that nobody may see, and values that stand elsewhere.

`${env:NAME}` and `${file:/path}` refer to a value; `$${` is a plain `${`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from blockgz_runtime.errors import UnresolvedReference, UsageError
from index_format.errors import BlockgzError

MASK = "********"
KINDS = "${env:NAME} and ${file:/path}"
_PATTERN = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
_SECRET_NAME = re.compile(r"password|secret|passphrase|token$|\.key\.pem$|jaas|oauthbearer\.config$|^ssl\.key$", re.I)


def is_secret(name: str, value: str) -> bool:
    """Whether the value of a setting must never be shown: by its name, or as it refers to something outside."""
    return bool(_SECRET_NAME.search(name)) or "${" in value


def has_reference(text: str) -> bool:
    """Whether the text refers to something outside it."""
    return any(match[0] != "$${" for match in _PATTERN.finditer(text))


def check_references(text: str) -> None:
    """Raises ValueError for a reference of an unknown kind; looks nothing up."""
    _replace(text, lambda _kind, _name: "")


@dataclass(frozen=True)
class Secrets:
    """Settings in the clear, and what must not be shown of them."""

    values: Mapping[str, str]
    hidden: frozenset[str]

    def mask(self, text: str) -> str:
        """The text without what must not be shown."""
        for secret in sorted(self.hidden, key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text

    @contextmanager
    def kept_out_of_errors(self) -> Iterator[None]:
        """Errors of ours are masked, and lose the foreign error that they come from."""
        try:
            yield
        except BlockgzError as error:
            if not self.hidden:
                raise
            error.what, error.why, error.remedy = map(self.mask, (error.what, error.why, error.remedy))
            error.args = tuple(self.mask(each) if isinstance(each, str) else each for each in error.args)
            raise error from None


def look_up_secrets(settings: Mapping[str, Any], environ: Mapping[str, str]) -> Secrets:
    """Those of librdkafka's or Kafka's settings that are secret, each reference in them replaced.

    Raises UnresolvedReference, or UsageError for a malformed reference.
    """
    values: dict[str, str] = {}
    hidden: set[str] = set()
    for name, value in settings.items():
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if isinstance(text, str) and (text is not value or is_secret(name, text)):
            with naming(f"-X {name}", remedy=f"correct {name}"):
                values[name] = resolve_references(text, environ)
                parts = (match[0] for match in _PATTERN.finditer(text) if match[0] != "$${")
                hidden |= {values[name], *(resolve_references(part, environ) for part in parts)}
    return Secrets(values, frozenset(filter(None, hidden)))


def resolve_references(text: str, environ: Mapping[str, str]) -> str:
    """The text with what its references stand for. Raises UnresolvedReference, ValueError as above."""

    def look_up(kind: str, name: str) -> str:
        return _from_environment(name, environ) if kind == "env" else _from_file(name)

    return _replace(text, look_up)


@contextmanager
def naming(setting: str, remedy: str) -> Iterator[None]:
    """Errors about references name the setting: UnresolvedReference, and UsageError for one that is malformed."""
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
