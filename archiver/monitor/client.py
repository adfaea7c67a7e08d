"""Asking a running archiver how it is."""

from http.client import HTTPException
from urllib.request import urlopen

import msgspec

from archiver.errors import ServiceUnreachable
from archiver.monitor.snapshot import ServiceSnapshot
from blockgz_runtime.errors import UsageError

REQUEST_SECONDS = 10.0
MAX_ANSWER_BYTES = 256 * 1024 * 1024


def service_snapshot(address: str) -> ServiceSnapshot:
    """The snapshot that the archiver at `http://HOST:PORT`, or `HOST:PORT`, gives.

    Raises UsageError for what is no such address, ServiceUnreachable where nobody answers, or not as an archiver does.
    """
    base = address if "://" in address else f"http://{address}"
    if not base.startswith(("http://", "https://")):
        raise UsageError(
            f"--http {address!r} is not the address of an archiver", remedy="write HOST:PORT or http://HOST:PORT"
        )
    try:
        with urlopen(f"{base.rstrip('/')}/status", timeout=REQUEST_SECONDS) as answer:
            return msgspec.json.decode(answer.read(MAX_ANSWER_BYTES), type=ServiceSnapshot)
    except (OSError, HTTPException, ValueError) as error:
        raise ServiceUnreachable(
            f"no archiver answers at {address}",
            why=str(error),
            remedy="check the address, and that the archiver runs with --http",
        ) from error
