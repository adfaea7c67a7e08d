"""Settings of librdkafka that load native code or run commands: only a command line may have them.

Files and environments are often written by others than those who run the program; a file that is only checked must not
run anything either.
"""

import re
import time
from collections.abc import Mapping
from typing import Any

from blockgz.errors import UsageError

LOADS_CODE = {
    "plugin.library.paths": "it loads libraries",
    "ssl.engine.id": "it loads a library",
    "ssl.engine.location": "it loads a library",
    "ssl.providers": "it loads libraries",
    "sasl.kerberos.kinit.cmd": "it is run by a shell",
}
IN_A_COMMAND = ("sasl.kerberos.keytab", "sasl.kerberos.principal", "sasl.kerberos.service.name")
"""These stand in the command that is run for Kerberos."""
_HARMLESS = re.compile(r"[\w@.:/-]*", re.ASCII)


def refuse_code(name: str, value: object, shown: str) -> None:
    """Raises UsageError for a setting that would run something; `shown` is how the user knows it."""
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
    """Settings to check a client by, which loads nothing and asks no endpoint for tokens."""
    kept = {name: value for name, value in settings.items() if name not in LOADS_CODE}
    if kept.get("sasl.oauthbearer.method") == "oidc":
        kept |= {"sasl.oauthbearer.method": "default", "oauth_cb": _no_token}
    return kept


def _no_token(_: str) -> tuple[str, float]:
    return "unused", time.time() + 3600
