"""Settings that nobody may see."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from blockgz.references import naming, references_in, resolve_references
from index_format.errors import MASK, BlockgzError, masked_urls

_SECRET_NAME = re.compile(r"password|secret|passphrase|token$|\.key\.pem$|jaas|oauthbearer\.config$|^ssl\.key$", re.I)


def is_secret(name: str, value: str) -> bool:
    """Whether the value of a setting must never be shown: by its name, or by what it holds or refers to."""
    return bool(_SECRET_NAME.search(name)) or "${" in value or masked_urls(value) != value


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
                parts = references_in(text)
                hidden |= {values[name], *(resolve_references(part, environ) for part in parts)}
    return Secrets(values, frozenset(filter(None, hidden)))
