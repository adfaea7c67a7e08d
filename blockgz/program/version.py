"""`--version` of both programs, and what they say of the C extensions."""

from collections.abc import Callable
from typing import Any

import click

from index_format.kernel_choice import Kernel


def kernels() -> dict[str, Kernel]:
    """The C extensions, by what they do."""
    # Asked of the one for Kafka only here: it loads Kafka's client.
    from blockgz.kafka.fetching import KERNEL as KAFKA  # noqa: PLC0415
    from index_format.kernel_choice import KERNEL as RECORDS  # noqa: PLC0415

    return {"records": RECORDS, "Kafka": KAFKA}


def kernel_words(found: dict[str, Kernel]) -> str:
    """Which of them are in use, and why the others are not."""
    return ", ".join(
        f"{name} in use" if each else f"{name} not in use ({each.why_not})" for name, each in found.items()
    )


def version_option(program: str) -> Callable[[Any], Any]:
    """Adds `--version`: of the program, and whether the C extensions are in use."""

    def show(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value and not context.resilient_parsing:
            from importlib.metadata import version  # noqa: PLC0415

            click.echo(f"{program}, version {version('blockgz')}")
            click.echo(f"C extensions: {kernel_words(kernels())}")
            context.exit()

    return click.option(
        "--version",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Show the version, and whether the C extensions are in use.",
    )
