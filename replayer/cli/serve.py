"""`replayer serve`."""

import asyncio
import gc
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from blockgz.archive.archive import ArchivePlace
from blockgz.errors import UsageError
from blockgz.hosts import host_and_port, listening_socket
from blockgz.kafka.connection import client_settings
from blockgz.kafka.secrets import look_up_secrets
from blockgz.process import ENDING, ended_soon_after_signals, loop_signals, run_async, share_heaps
from blockgz.program.main import closing
from blockgz.program.options import LocalPath, Option, OptionSet, kafka_options, option_zone, zone_option
from blockgz.signing import is_signed_by, signed
from replayer.cli.options.options import archive_options, jobs_option
from replayer.serve.app import make_app
from replayer.serve.settings import Access, ServeSettings, parse_network, read_token

MOST_CONNECTIONS = 200
END_SECONDS = 3
HEAD_BYTES = 32 * 1024
# Seconds after which a connection without a whole request is closed; it may take twice as long.
REQUEST_SECONDS = 10.0
# Checks in a row in which a client took nothing of its answer before its connection is closed as well.
STALLED_LOOKS = 6


def _access(**given: Any) -> tuple[Access, int]:
    host, port = host_and_port("--http", given.pop("http"))
    return Access(host, **given), port


# Passes `access: tuple[Access, int]`, the port last.
access_options = OptionSet(
    "access",
    _access,
    Option("--http", metavar="HOST:PORT", default="127.0.0.1:8080", help="Where to listen; port 0 is any free port."),
    Option(
        "--token-file",
        "token",
        parse=read_token,
        type=LocalPath(path_type=Path),
        metavar="FILE",
        help="Ask for the token in this file; needed on other addresses than loopback ones.",
    ),
    Option("--user-header", metavar="NAME", help="The header in which a proxy in front names the user."),
    Option(
        "--trusted-proxy",
        "trusted_proxies",
        multiple=True,
        parse=lambda texts: tuple(map(parse_network, texts)),
        metavar="ADDRESS",
        help="Address or network of that proxy; may be repeated.",
    ),
    Option(
        "--allowed-host",
        "allowed_hosts",
        multiple=True,
        parse=lambda names: frozenset(name.lower() for name in names),
        metavar="NAME",
        help="Name by which browsers ask for the page; may be repeated.",
    ),
)

REPORTS = Option(
    "--reports",
    type=LocalPath(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder of verification reports: shown, and written by verifications of the page.",
)
REPORT_KEY = Option(
    "--key",
    "report_key",
    type=LocalPath(path_type=Path),
    envvar="BLOCKGZ_REPORT_KEY",
    metavar="PEM",
    help="The public key of the reports' signer.",
)
SIGN_KEY = Option(
    "--sign-key", type=LocalPath(path_type=Path), metavar="PEM", help="Key that signs reports made by the page."
)


@click.command(
    "serve",
    epilog=closing(
        "replayer serve -a ./archive",
        "replayer serve -a s3://bucket/prefix -b localhost:9092 --allow-replay",
        "replayer serve -a s3://bucket/prefix --http 0.0.0.0:8080 --token-file /run/secrets/token",
        "replayer serve -a ./archive --archiver http://localhost:9464 --reports ./reports",
    ),
)
@access_options
@Option("--allow-replay", is_flag=True, help="Allow replays; without it, the page only reads.")
@Option(
    "--archiver",
    "archivers",
    multiple=True,
    metavar="URL",
    help="An archiver's --http address, such as http://localhost:9464, to show its lag; may be repeated.",
)
@REPORTS
@REPORT_KEY
@SIGN_KEY
@jobs_option
@kafka_options()
@zone_option
@archive_options
def command(access: tuple[Access, int], kafka: dict[str, str], archive: ArchivePlace, **given: Any) -> None:
    """Show an archive as a web page, with an API under it.

    Topics, coverage, records, searches, verifications, replays and archivers. Read-only without --allow-replay. On a
    loopback address, everybody on this machine may use it; elsewhere it needs a token, or a proxy that names the users.
    Each replay runs in its own process and continues after `replayer serve` ends.
    """
    for url in given["archivers"]:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"--archiver {url[:80]} is not a URL", remedy="write http://HOST:9464")
    _check_reports(given["reports"], given["report_key"], given["sign_key"])
    if given["allow_replay"] and not kafka.get("bootstrap.servers"):
        raise UsageError("--allow-replay has no cluster to replay to", remedy="add -b HOST:PORT")
    if kafka.get("bootstrap.servers"):
        look_up_secrets(
            client_settings(kafka, "page"), os.environ
        )  # so that a fault is reported now, not by the first replay
    share_heaps()
    settings = ServeSettings(archive.absolute(), access[0], kafka, zone=option_zone(), **given)
    listening = listening_socket("--http", access[0].host, access[1])
    run_async(_serve(settings, listening))


def _check_reports(reports: Path | None, report_key: Path | None, sign_key: Path | None) -> None:
    """Make the folder; raise UsageError for what a verification would stumble over when it has read the archive."""
    if reports is not None:
        try:
            reports.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"--reports {reports} cannot be made", why=error.strerror or str(error), remedy="name another folder"
            ) from error
    if sign_key is not None:
        signed(b"", sign_key)
    if report_key is not None:
        is_signed_by(b"", b"", report_key)


class _Server(uvicorn.Server):
    """Ends in order at SIGTERM and SIGINT, which a service is ended by."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        handlers = {number: partial(self.handle_exit, number, None) for number in ENDING}
        # A read of a folder that hangs cannot be ended, nor waited for.
        with loop_signals(handlers), ended_soon_after_signals(dict.fromkeys(ENDING, 0), 2 * END_SECONDS):
            yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End connections, also those accepted a moment ago, which uvicorn does not know yet and would wait for."""
        for server in self.servers:
            server.close()
        await asyncio.sleep(0.05)
        await super().shutdown(sockets)


class _Connection(H11Protocol):
    """A connection that cannot be held without asking for something, or taking the answer: there are few of them."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unsent = self._stalled = 0
        self._look_again()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def _look_again(self) -> None:
        self._timer = self.loop.call_later(REQUEST_SECONDS, self._look, self.cycle, self._is_waiting)

    def _look(self, before: object, was_waiting: bool) -> None:
        before_unsent, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        self._stalled = self._stalled + 1 if self._unsent and self._unsent == before_unsent else 0
        if self._stalled >= STALLED_LOOKS:
            self.transport.abort()  # to close it would wait for what its client does not take
        elif was_waiting and self._is_waiting and self.cycle is before:
            self.transport.close()
        self._look_again()

    @property
    def _is_waiting(self) -> bool:
        """True while a request, or the rest of one, has to come."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body


async def _serve(settings: ServeSettings, listening: socket.socket) -> None:
    config = uvicorn.Config(
        make_app(settings),
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        http=_Connection,
        ws="none",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=END_SECONDS,
        h11_max_incomplete_event_size=HEAD_BYTES,
    )
    host, port = listening.getsockname()[:2]
    click.echo(f"serving {settings.place.address} on http://{f'[{host}]' if ':' in host else host}:{port}", err=True)
    gc.freeze()
    await _Server(config).serve([listening])
