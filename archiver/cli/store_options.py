"""Where an archive is: options of the commands that read no configuration."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def store_options(*, required: bool = True) -> Callable[[F], F]:
    """Adds --archive --endpoint-url --region; passes them as they are."""
    options = (
        click.option("--region", help="The bucket's region."),
        click.option("--endpoint-url", metavar="URL", help="Where the S3 API is, if not at AWS; addressed path style."),
        click.option(
            "-a",
            "--archive",
            metavar="ADDRESS",
            required=required,
            help="Where the archive is: s3://bucket/prefix, file:///dir or ./dir.",
        ),
    )

    def decorated(function: F) -> F:
        for option in options:
            function = option(function)
        return function

    return decorated
