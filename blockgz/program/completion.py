"""Completion of TOPIC in shells: the topics of the archive that the command line names, and of the brokers."""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields

import click
from click.shell_completion import CompletionItem

from blockgz.program.config_file import kafka_defaults
from blockgz.program.kafka_options import kafka_properties
from blockgz.store.s3_settings import S3Settings

DEADLINE_SECONDS = 2.0


class _Topic(click.types.StringParamType):
    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        with ctx.scope(cleanup=False):
            return [CompletionItem(name) for name in topic_names(ctx) if name.startswith(incomplete)]


TOPIC = _Topic()
"""A text that is completed to a topic."""


def topic_names(context: click.Context) -> list[str]:
    """Topics that the command could mean, as far as they are told within the deadline; raises nothing.

    Commands that read from a cluster ask its brokers too. TOPIC of an import is in a SOURCE that takes long to list.
    """
    given = context.params
    sources: list[Callable[[], Iterable[str]]] = []
    if given.get("archive") and "source" not in given:
        s3 = S3Settings(**{each.name: given[each.name] for each in fields(S3Settings) if given.get(each.name)})
        sources.append(lambda: _archived(given["archive"], s3))
    if given.get("bootstrap_servers"):
        kafka = kafka_defaults()
        with suppress(Exception):
            kafka |= kafka_properties(given.get("kafka") or ())
        sources.append(lambda: _of_brokers(kafka | {"bootstrap.servers": given["bootstrap_servers"]}))
    return sorted(_told(sources))


def _told(sources: list[Callable[[], Iterable[str]]]) -> set[str]:
    answers: queue.SimpleQueue[Iterable[str]] = queue.SimpleQueue()

    def ask(source: Callable[[], Iterable[str]]) -> None:
        found: Iterable[str] = ()
        with suppress(Exception):
            found = source()
        answers.put(found)

    for source in sources:
        threading.Thread(target=ask, args=(source,), daemon=True).start()
    until = time.monotonic() + DEADLINE_SECONDS
    names: set[str] = set()
    with suppress(queue.Empty):
        for _ in sources:
            names.update(answers.get(timeout=max(0.0, until - time.monotonic())))
    return names


def _archived(address: str, s3: S3Settings) -> set[str]:
    from blockgz.store.opening import open_existing_store  # noqa: PLC0415 - no command needs it but to complete
    from index_format.keys import ARCHIVE_OBJECT, LAYOUTS, archive_key, topic_folders  # noqa: PLC0415

    store = open_existing_store(address, s3)
    homes = [archive_key(layout).removesuffix(ARCHIVE_OBJECT) for layout in LAYOUTS]
    return {folder.topic for home in homes for folder in topic_folders(store.folders(home))}


def _of_brokers(kafka: dict[str, str]) -> list[str]:
    from blockgz.kafka.admin import topics_of  # noqa: PLC0415
    from blockgz.kafka.secrets import without_code  # noqa: PLC0415
    from blockgz.kafka.settings import client_settings  # noqa: PLC0415

    return topics_of(without_code(client_settings(kafka, "blockgz-completion")), DEADLINE_SECONDS)
