"""The settings of the page."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import tzinfo
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any

from blockgz.archive.archive import ArchivePlace
from blockgz.errors import MASK, UsageError, masked_urls
from blockgz.hosts import is_loopback
from blockgz.kafka.secrets import is_secret
from index_format.objects import DEFAULT_MAX_BLOCK_BYTES

Network = IPv4Network | IPv6Network
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
# Headers that browsers send, and mean something else by.
OTHERS_HEADERS = frozenset({"host", "origin", "authorization", "cookie", "content-length", "content-type", "accept"})


@dataclass(frozen=True)
class Access:
    """The users who may use the page: everybody on this machine, those who know the token, or those whom a trusted
    proxy names.
    """

    host: str
    """The address that the server is bound to."""
    token: str | None = field(default=None, repr=False)
    user_header: str | None = None
    """The header in which a proxy names the user."""
    trusted_proxies: tuple[Network, ...] = ()
    """Only from these addresses the header is believed."""
    allowed_hosts: frozenset[str] = frozenset()
    """Host names that requests may use, in addition to those of this machine; any name if there are none."""

    def __post_init__(self) -> None:
        """Raise UsageError for a server that everybody in the network could use."""
        if not is_loopback(self.host) and self.token is None and self.user_header is None:
            raise UsageError(
                f"the page cannot be served on {self.host} for everybody",
                why="other machines reach that address, and neither a token nor a proxy that names users is given",
                remedy="add --token-file FILE, or --user-header NAME --trusted-proxy ADDRESS, or use 127.0.0.1",
            )
        if self.user_header is not None and not self.trusted_proxies:
            raise UsageError(
                f"--user-header {self.user_header} is not safe without --trusted-proxy",
                why="anybody can send that header",
                remedy="add --trusted-proxy with the address of the proxy",
            )

        if self.user_header is not None and (
            not HEADER.fullmatch(self.user_header) or self.user_header.lower() in OTHERS_HEADERS
        ):
            raise UsageError(
                f"--user-header {self.user_header[:80]!r} cannot name users",
                why="it is not a valid custom header name",
                remedy="use the one that the proxy sets, such as X-Forwarded-User",
            )
        if self.trusted_proxies and self.user_header is None:
            raise UsageError(
                "--trusted-proxy has no effect",
                why="without --user-header, no header names the user",
                remedy="add --user-header NAME",
            )

    def is_trusted_proxy(self, address: str) -> bool:
        """Return whether a header of a connection from this address is believed."""
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self.trusted_proxies)


@dataclass(frozen=True)
class ServeSettings:
    """The archive, and what may be done with it."""

    place: ArchivePlace
    access: Access
    kafka: Mapping[str, str] = field(default_factory=dict)
    """librdkafka's settings, as they were given; without brokers nothing can be replayed or compared."""
    jobs: str | None = None
    """The address of the folders of replay jobs."""
    allow_replay: bool = False
    archivers: tuple[str, ...] = ()
    """Addresses of archivers, as `http://host:9464`."""
    reports: Path | None = None
    """The folder of verification reports."""
    report_key: Path | None = None
    """The public key of their signatures."""
    sign_key: Path | None = None
    """The private key that signs those made here."""
    zone: tzinfo | None = None
    """The zone of times without an offset; UTC if None."""

    @property
    def has_brokers(self) -> bool:
        """True if a cluster is known."""
        return bool(self.kafka.get("bootstrap.servers"))

    @property
    def options(self) -> dict[str, Any]:
        """The options by which a command gets the archive, then the jobs and the cluster; None or as by default too."""
        place, old = self.place, self.place.old_format
        return {
            "archive": place.address,
            **asdict(place.s3),
            "keys": place.keys,
            "max_block_bytes": place.max_block_bytes,
            "old_format": old and old.name,
            "key_delimiter": old and "".join(f"\\x{byte:02x}" for byte in old.delimiter),
            "bootstrap_server": self.kafka.get("bootstrap.servers"),
            "jobs": self.jobs,
            "timezone": self.zone,
        }

    def command(self, *words: str, of_cluster: bool = False) -> str:
        """Return a command for a shell, with all that the page was started with; secrets of Kafka are masked."""
        given = self.options | ({} if of_cluster else {"jobs": None, "timezone": None, "bootstrap_server": None})
        if given["max_block_bytes"] == DEFAULT_MAX_BLOCK_BYTES:
            del given["max_block_bytes"]
        short = {"archive": "-a", "bootstrap_server": "-b"}
        pairs = [(short.get(name, f"--{name.replace('_', '-')}"), value) for name, value in given.items() if value]
        if of_cluster:
            kafka = {name: MASK if is_secret(name, value) else value for name, value in self.kafka.items()}
            pairs += [("-X", f"{name}={value}") for name, value in kafka.items() if name != "bootstrap.servers"]
        return shlex.join([*words, *(masked_urls(str(word)) for pair in pairs for word in pair)])


def parse_network(text: str) -> Network:
    """Parse an address such as `10.0.0.1` or `10.0.0.0/8`; raise UsageError."""
    try:
        return ip_network(text)
    except ValueError as error:
        raise UsageError(
            f"{text[:80]!r} is not an address of a proxy", why=str(error), remedy="write 10.0.0.1 or 10.0.0.0/8"
        ) from error


def read_token(path: Path) -> str:
    """Return the token in a file; raise UsageError for one that is easily guessed."""
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the token in {path} cannot be read", why=str(error)) from error
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"the token in {path} cannot be used",
            why=f"it is not at least {LEAST_TOKEN} printable ASCII characters without blanks",
            remedy="make one: openssl rand -hex 32 > FILE",
        )
    return token


LEAST_TOKEN = 16
