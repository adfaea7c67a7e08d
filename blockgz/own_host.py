"""Names of this machine, and which a request to a server on it may be meant for."""

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine."""
    name = host.lower().removesuffix(".")
    try:
        return name == "localhost" or name.endswith(".localhost") or ip_address(name).is_loopback
    except ValueError:
        return False


def is_own_name(bound: str, asked: str | None) -> bool:
    """Whether a request may be meant for a server that is bound to this host; `asked` is its header Host.

    A page of some web site can give its own name the address 127.0.0.1, and have a browser ask for it.
    """
    if asked is None or not is_loopback(bound):
        return True
    try:
        name = urlsplit(f"//{asked}").hostname or ""
    except ValueError:
        return False
    return name == bound.lower() or is_loopback(name)
