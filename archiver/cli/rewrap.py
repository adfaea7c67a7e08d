"""`archiver rewrap`."""

from collections.abc import Sequence
from typing import Any

import click
import orjson

from archiver.commit.driver import Driver, NoLog
from archiver.maintain.partitions import Problem
from archiver.maintain.rewrap.planning import RewrapPlans, plan_rewrapping
from archiver.maintain.rewrap.running import Rewrapped, carry_out
from archiver.maintain.rewrite.intent import Outcome, not_done
from blockgz.encryption.keyring import FORMS, load_keyring
from blockgz.errors import UsageError
from blockgz.program.archive_options import keys_option, store_options, writing_s3_options
from blockgz.program.main import closing, code_of_problems, confirm, print_problems
from blockgz.program.plan_options import plan_options
from blockgz.program.tables import print_table
from blockgz.store.opening import open_existing_store
from blockgz.store.retry import bounded_backoff
from blockgz.store.s3_settings import S3Settings
from blockgz.topic_patterns import TopicSelection


@click.command(
    epilog=closing(
        "archiver rewrap --keys file:/etc/blockgz/keys -a s3://backup/kafka --dry-run",
        "archiver rewrap orders --keys file:/etc/blockgz/old,file:/etc/blockgz/new -a ./archive --yes",
    ),
)
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@store_options(writing_s3_options)
@keys_option
@plan_options
def rewrap(
    *,
    topics: tuple[str, ...],
    archive: str,
    s3: S3Settings,
    keyring: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Wrap the keys of encrypted chunks with the newest master key, while archivers run.

    The last of --keys wraps, all of them unwrap. Only indexes are stored again, never data. Give archivers the newest
    key first: one that is at work claims its partitions again, and needs it then. The old key is needed until `archiver
    gc` has deleted the old indexes, a grace period after it first saw them replaced. TOPIC is a name, a glob or ~regex;
    the default is the whole archive. Prints the plan and asks first.
    """
    if keyring is None:
        raise UsageError(
            "no keys were given",
            why="the old key unwraps, and the newest one wraps again",
            remedy=f"add --keys KEYS: {FORMS}",
        )
    masters = load_keyring(keyring)
    store = open_existing_store(archive, s3)
    driver = Driver(store, NoLog(), bounded_backoff(store.url), lambda: True)
    plan = plan_rewrapping(store, TopicSelection(topics) if topics else None, masters, driver)
    if not as_json:
        _print_plan(plan)
    done: list[Rewrapped] = []
    if plan.partitions and not dry_run:
        question = f"Wrap the keys of {plan.old:,} chunks with the key {masters.newest_id}?"
        confirm(question, undone="nothing was changed", is_agreed=yes)
        carry_out(plan.partitions, masters, driver, done.append)
        if not as_json:
            whole = sum(_is_done(each) for each in done)
            click.echo(
                f"rewrapped {whole:,} of {len(plan.partitions):,} partitions; "
                "keep the old keys until archiver gc has deleted the old indexes"
            )
    problems = (*plan.problems, *_failed(done))
    print_problems(problems)
    if as_json:
        value = result_object(archive, plan, masters.newest_id, done, problems, dry_run=dry_run)
        click.echo(orjson.dumps(value).decode())
    tried = len(plan.partitions) + len(plan.problems)
    return code_of_problems([each.error for each in problems], tried=tried)


def _is_done(each: Rewrapped) -> bool:
    return each.error is None and each.outcome is Outcome.COMMITTED


def _failed(done: Sequence[Rewrapped]) -> list[Problem]:
    return [
        Problem(each.plan.name, each.error or not_done(each.plan.name, "rewrapped as a whole", each.outcome))
        for each in done
        if not _is_done(each)
    ]


def result_object(
    archive: str,
    plan: RewrapPlans,
    newest: str,
    done: Sequence[Rewrapped],
    problems: Sequence[Problem],
    *,
    dry_run: bool,
) -> dict[str, Any]:
    """The JSON contract of `archiver rewrap --json`."""
    rewrapped = {each.plan.keys.home for each in done if _is_done(each)}
    return {
        "archive": archive,
        "dry_run": dry_run,
        "key": newest,
        "chunks": plan.old,
        "untouched": plan.untouched,
        "partitions": [
            {
                "topic": str(each.keys.folder),
                "partition": each.keys.partition,
                "encrypted_chunks": each.encrypted,
                "chunks": each.old,
                "old_keys": sorted(each.ids),
                "rewrapped": each.keys.home in rewrapped,
            }
            for each in plan.partitions
        ],
        "problems": [each.as_json for each in problems],
    }


def _print_plan(plan: RewrapPlans) -> None:
    if not plan.partitions:
        if not plan.problems:
            click.echo("nothing to rewrap")
        return
    rows = [
        (str(each.keys.folder), each.keys.partition, each.encrypted, each.old, ", ".join(sorted(each.ids)))
        for each in plan.partitions
    ]
    print_table(("topic", "partition", "encrypted chunks", "to rewrap", "old keys"), rows, droppable=("old keys",))
    if plan.untouched:
        click.echo(f"{plan.untouched:,} partitions stay as they are")
