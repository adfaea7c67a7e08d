"""Connections to other hosts on which records and credentials can be read and changed by whoever is between."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from blockgz.own_host import is_loopback

IN_THE_CLEAR = ("plaintext", "sasl_plaintext")


def unencrypted_brokers(properties: Mapping[str, Any]) -> str | None:
    """The first broker on another host that librdkafka's settings connect to without TLS."""
    if str(properties.get("security.protocol", IN_THE_CLEAR[0])).lower() not in IN_THE_CLEAR:
        return None
    brokers = str(properties.get("bootstrap.servers", "")).split(",")
    return next((each.strip() for each in brokers if each.strip() and not is_loopback(_host(each.strip()))), None)


def unencrypted_endpoint(endpoint_url: str | None) -> str | None:
    """The host of an S3 endpoint on another host that is asked without TLS."""
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
