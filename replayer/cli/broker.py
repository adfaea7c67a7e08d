"""`replayer broker`."""

import asyncio
import logging
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import click

from blockgz.archive.archive import ArchivePlace
from blockgz.errors import UsageError
from blockgz.hosts import host_and_port, is_loopback, listening_socket
from blockgz.process import ENDING, ended_soon_after_signals, loop_signals, run_async, share_heaps
from blockgz.program.main import closing
from blockgz.program.options import DURATION, SIZE, Option, OptionSet
from blockgz.store.reader import DiskCache
from blockgz.topic_patterns import TopicSelection, nothing_matches
from replayer.broker.answers import Answers
from replayer.broker.batches import CODECS
from replayer.broker.block_cache import BlockCache
from replayer.broker.connections import BrokerServer, Listener, Security, ServerCertificate
from replayer.broker.fetch import Allowance, FetchState
from replayer.broker.health import BrokerCollector, health_served
from replayer.broker.partition_logs import FRESH_SECONDS, Logs
from replayer.broker.users import BrokerLogins, new_user, read_users, write_user
from replayer.cli.options.options import archive_options, cache_option, open_archive

_DEFAULT_LISTENER = "127.0.0.1:9092"
_END_SECONDS = 6


def _listener(text: str) -> Listener:
    bound, _, advertised = text.partition("=")
    host, port = host_and_port("--listen", bound)
    return Listener(host, port, host_and_port("--listen", advertised) if advertised else None)


class Guarding(NamedTuple):
    """The files that say who may connect."""

    users: Path | None
    insecure: bool
    tls_cert: Path | None
    tls_key: Path | None
    tls_client_ca: Path | None

    def security(self) -> Security:
        """Read the files; raise UsageError."""
        if (self.tls_key or self.tls_client_ca) and self.tls_cert is None:
            raise UsageError("--tls-key and --tls-client-ca have no effect", why="there is no --tls-cert")
        logins = BrokerLogins(read_users(self.users)) if self.users is not None else None
        if self.tls_cert is None:
            return Security(logins=logins)
        try:
            return Security(ServerCertificate(self.tls_cert, self.tls_key, self.tls_client_ca), logins)
        except OSError as error:  # ssl.SSLError is one
            raise UsageError(
                "the TLS certificate, its key or the clients' authority cannot be used",
                why=str(error),
                remedy="give PEM files: --tls-cert CHAIN --tls-key KEY --tls-client-ca CA",
            ) from error

    def check(self, listeners: tuple[Listener, ...], is_encrypted: bool) -> None:
        """Raise UsageError for a port that more people reach than should."""
        reached = [each.host for each in listeners if not is_loopback(each.host)]
        is_guarded = self.users is not None or self.tls_client_ca is not None
        if reached and not is_guarded and not self.insecure:
            raise UsageError(
                f"the archive cannot be served on {reached[0]} for everybody",
                why="other machines reach that address",
                remedy="add --users FILE, or --tls-client-ca with --tls-cert, or --insecure, or listen on 127.0.0.1",
            )
        if reached and is_encrypted and self.tls_cert is None:
            raise UsageError(
                f"an encrypted archive cannot be served on {reached[0]} in the clear",
                why="its records are decrypted before they are sent",
                remedy="add --tls-cert and --tls-key",
            )


# Passes `guarding: Guarding`.
guarding_options = OptionSet(
    "guarding",
    Guarding,
    Option(
        "--users",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Users who log in with SCRAM, or with PLAIN over TLS; needed on other addresses than loopback ones.",
    ),
    Option("--insecure", is_flag=True, help="Serve everybody who reaches the port."),
    Option("--tls-cert", type=click.Path(path_type=Path), metavar="PEM", help="Certificate chain; clients use TLS."),
    Option("--tls-key", type=click.Path(path_type=Path), metavar="PEM", help="Its private key, if in another file."),
    Option(
        "--tls-client-ca",
        type=click.Path(path_type=Path),
        metavar="PEM",
        help="Authority that must have signed the clients' certificates.",
    ),
)


class Serving(NamedTuple):
    """The options of a broker, checked."""

    archive: ArchivePlace
    cache: DiskCache | None
    topics: tuple[str, ...]
    listeners: tuple[Listener, ...]
    security: Security
    memory: int
    compression: str | None
    fresh: float
    stop_at_gaps: bool
    http: tuple[str, int] | None


@click.command(
    "broker",
    epilog=closing(
        "replayer broker -a ./archive",
        "replayer broker orders 'pay-*' -a s3://bucket/prefix --listen 0.0.0.0:9092=backup.example.com:9092 "
        "--users users --tls-cert cert.pem --tls-key key.pem",
        "replayer broker --users users --add-user anna -a ./archive < password",
    ),
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@Option(
    "--listen",
    "listeners",
    multiple=True,
    parse=lambda texts: tuple(map(_listener, texts or (_DEFAULT_LISTENER,))),
    metavar="HOST:PORT[=HOST:PORT]",
    help=f"Where to listen, and the address that clients are given; may be repeated.  [default: {_DEFAULT_LISTENER}]",
)
@guarding_options
@Option("--add-user", metavar="NAME", help="Write a user to --users, with the password on standard input, and end.")
@Option("--allow", "allowed", multiple=True, metavar="TOPIC", help="With --add-user: a topic or glob; may be repeated.")
@Option("--compression", type=click.Choice(sorted(CODECS)), help="Compress record batches, for slow networks.")
@Option("--memory", type=SIZE, default="128MiB", help="Memory for record batches.")
@Option("--fresh", type=DURATION, default=f"{FRESH_SECONDS:g}s", help="How often to look for new records.")
@Option(
    "--http",
    parse=lambda text: text and host_and_port("--http", text),
    metavar="HOST:PORT",
    help="Address of /metrics, /healthz and /readyz.",
)
@Option("--stop-at-gaps", is_flag=True, help="Answer with an error at a gap in the archive, rather than skip it.")
@cache_option
@archive_options
def command(
    topics: tuple[str, ...],
    listeners: tuple[Listener, ...],
    guarding: Guarding,
    add_user: str | None,
    allowed: tuple[str, ...],
    archive: ArchivePlace,
    **given: Any,
) -> None:
    """Serve an archive to Kafka clients as a broker that is only read.

    Clients consume the archived topics, all or those that TOPIC names, at their own offsets and timestamps; nothing is
    restored. Clients assign partitions themselves: there are no consumer groups.
    """
    if add_user is not None:
        if guarding.users is None:
            raise UsageError("--add-user has no file to write to", remedy="add --users FILE")
        write_user(guarding.users, new_user(add_user, allowed, sys.stdin.readline().rstrip("\r\n")))
        return
    guarding.check(listeners, archive.keys is not None)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    share_heaps()
    run_async(_serve(Serving(archive, topics=topics, listeners=listeners, security=guarding.security(), **given)))


async def _serve(serving: Serving) -> None:
    ending = asyncio.Event()
    handlers = dict.fromkeys(ENDING, ending.set)
    async with AsyncExitStack() as stack:
        stack.enter_context(loop_signals(handlers))
        stack.enter_context(ended_soon_after_signals(dict.fromkeys(ENDING, 0), _END_SECONDS))
        archive = await stack.enter_async_context(open_archive(serving.archive, serving.cache))
        blocks = BlockCache(serving.memory, serving.compression)
        stack.push_async_callback(blocks.close)
        logs = Logs(archive, TopicSelection(serving.topics or ["*"]), blocks.drop, serving.fresh)
        stack.callback(logs.close)
        if not await logs.names() and serving.topics:
            raise nothing_matches(serving.topics, await archive.topics())
        reading = FetchState(blocks, Allowance(serving.memory), serving.stop_at_gaps)
        stack.push_async_callback(reading.close)
        server = BrokerServer(Answers(logs, reading), serving.security)
        http = listening_socket("--http", *serving.http) if serving.http else None
        collector = BrokerCollector(logs, reading, server)
        await stack.enter_async_context(
            health_served(http, collector, lambda: "the broker is ending" if server.is_ending else logs.trouble)
        )
        stack.push_async_callback(server.close)
        renewing = asyncio.create_task(serving.security.renew())
        stack.callback(renewing.cancel)
        await _listen(server, serving)
        await ending.wait()


async def _listen(server: BrokerServer, serving: Serving) -> None:
    try:
        addresses = await server.listen(serving.listeners)
    except OSError as error:
        raise UsageError(
            "the broker cannot listen", why=error.strerror or str(error), remedy="give --listen another address or port"
        ) from error
    for listener, (host, port) in zip(serving.listeners, addresses, strict=True):
        given = "{}:{}".format(*listener.advertised) if listener.advertised else "the address that they connect to"
        click.echo(f"serving {serving.archive.address} on {host}:{port}; clients are given {given}", err=True)
        if listener.host in ("0.0.0.0", "::") and listener.advertised is None:
            click.echo(
                "warning: clients behind a port forward cannot use that; "
                f"add the address that they use: --listen {listener.host}:{port}=HOST:PORT",
                err=True,
            )
