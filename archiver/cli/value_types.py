"""Types of option values that a command takes beside the configuration's."""

from typing import Any

import click

from archiver.config.model import parse_duration, parse_size


class DurationType(click.ParamType[float]):
    """`5m` as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click.ParamType."""
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SizeType(click.ParamType[int]):
    """`128MiB` as bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click.ParamType."""
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE = SizeType()
DURATION = DurationType()
