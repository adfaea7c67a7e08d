"""Names of this machine, addresses to listen on, and connections to other hosts that are not encrypted."""

import socket
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from blockgz.errors import UsageError


def is_loopback(host: str) -> bool:
    """Return whether a name or an address means this machine."""
    name = host.lower().removesuffix(".")
    try:
        return name == "localhost" or name.endswith(".localhost") or ip_address(name).is_loopback
    except ValueError:
        return False


def is_own_name(bound: str, asked: str | None) -> bool:
    """Return whether a request is for a server bound to this host, by the header Host that it `asked` for."""
    # A page of some web site can give its own name the address 127.0.0.1, and have a browser ask for it.
    if asked is None or not is_loopback(bound):
        return True
    try:
        name = urlsplit(f"//{asked}").hostname or ""
    except ValueError:
        return False
    return name == bound.lower() or is_loopback(name)


IN_THE_CLEAR = ("plaintext", "sasl_plaintext")


def unencrypted_brokers(properties: Mapping[str, Any]) -> str | None:
    """Return the first broker on another host that librdkafka's settings connect to without TLS."""
    if str(properties.get("security.protocol", IN_THE_CLEAR[0])).lower() not in IN_THE_CLEAR:
        return None
    brokers = str(properties.get("bootstrap.servers", "")).split(",")
    return next((each.strip() for each in brokers if each.strip() and not is_loopback(_host(each.strip()))), None)


def unencrypted_endpoint(endpoint_url: str | None) -> str | None:
    """Return the host of an S3 endpoint on another host that is used without TLS."""
    try:
        url = urlsplit(endpoint_url or "")
        host = url.hostname
    except ValueError:
        return None
    return host if url.scheme == "http" and host and not is_loopback(host) else None


def _host(broker: str) -> str:
    try:
        return urlsplit(f"//{broker.rpartition('://')[2]}").hostname or broker
    except ValueError:
        return broker


def host_and_port(option: str, text: str) -> tuple[str, int]:
    """Parse `HOST:PORT` as an option gives it; raise UsageError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{option} {text[:80]} is not an address", remedy="write HOST:PORT, such as 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def listening_socket(option: str, host: str, port: int) -> socket.socket:
    """Return a socket that listens there; raise UsageError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"{option} {host}:{port} cannot be opened",
            why=getattr(error, "strerror", None) or str(error),
            remedy="use HOST:PORT with an address of this machine and a free port",
        ) from error
