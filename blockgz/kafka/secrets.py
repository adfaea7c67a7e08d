"""Settings of librdkafka that nobody may see, and those that load native code or run commands.

Only a command line may have the latter: files and environments are often written by others than those who run the
program, and a file that is only checked must not run anything either.
"""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from blockgz.errors import MASK, BlockgzError, UsageError, masked_urls
from blockgz.references import naming, references_in, resolve_references

LOADS_CODE = {
    "plugin.library.paths": "it loads libraries",
    "ssl.engine.id": "it loads a library",
    "ssl.engine.location": "it loads a library",
    "ssl.providers": "it loads libraries",
    "sasl.kerberos.kinit.cmd": "it is run by a shell",
}
# Settings that are part of the command that is run for Kerberos.
IN_A_COMMAND = ("sasl.kerberos.keytab", "sasl.kerberos.principal", "sasl.kerberos.service.name")
_HARMLESS = re.compile(r"[\w@.:/-]*", re.ASCII)


def refuse_code(name: str, value: object, shown: str) -> None:
    """Raise UsageError for a setting that would run something; `shown` is how the user knows it."""
    why = LOADS_CODE.get(name)
    if why is None and name in IN_A_COMMAND and not _HARMLESS.fullmatch(str(value)):
        why = "it is part of a shell command, and contains characters with a special meaning there"
    if why is not None:
        raise UsageError(
            f"{shown} may not be set there",
            why=f"{why}; files, the environment and Spark options are not trusted with that",
            remedy=f"remove it, or use -X {name}=... on the command line",
        )


def without_code(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings to check a client with, which load nothing and ask no endpoint for tokens."""
    kept = {name: value for name, value in settings.items() if name not in LOADS_CODE}
    if kept.get("sasl.oauthbearer.method") == "oidc":
        kept |= {"sasl.oauthbearer.method": "default", "oauth_cb": lambda _: ("unused", time.time() + 3600)}
    return kept


_SECRET_NAME = re.compile(r"password|secret|passphrase|token$|\.key\.pem$|jaas|oauthbearer\.config$|^ssl\.key$", re.I)


def is_secret(name: str, value: str) -> bool:
    """Return whether the value of a setting must never be shown: by its name, or by what it holds or refers to."""
    return bool(_SECRET_NAME.search(name)) or "${" in value or masked_urls(value) != value


@dataclass(frozen=True)
class Secrets:
    """Settings in the clear, and what must not be shown of them."""

    values: Mapping[str, str]
    hidden: frozenset[str]

    def mask(self, text: str) -> str:
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
    """Return the secret settings of librdkafka or Kafka, with each reference in them resolved.

    Raises UnresolvedReference, or UsageError for a malformed reference.
    """
    values: dict[str, str] = {}
    hidden: set[str] = set()
    for name, value in settings.items():
        # A pydantic.SecretStr, by its method: commands that only refuse settings do not load pydantic.
        text = value.get_secret_value() if hasattr(value, "get_secret_value") else value
        if isinstance(text, str) and (text is not value or is_secret(name, text)):
            with naming(f"-X {name}", remedy=f"correct {name}"):
                values[name] = resolve_references(text, environ)
                parts = references_in(text)
                hidden |= {values[name], *(resolve_references(part, environ) for part in parts)}
    return Secrets(values, frozenset(filter(None, hidden)))
