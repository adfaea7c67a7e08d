"""Types of option values that a command takes beside the configuration's."""

from typing import Any

import click

from ..config import parse_duration


class DurationType(click.ParamType[float]):
    """`5m` as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click.ParamType."""
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = DurationType()
