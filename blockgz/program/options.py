"""Options of commands: each is declared once, and those that belong together reach the command as one value."""

import difflib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from blockgz.errors import UsageError, joined
from blockgz.units import parse_duration, parse_size

if TYPE_CHECKING:
    from blockgz.record_filter import Condition

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]


class OptionPart(ABC):
    """An option, an argument, or a set of them; as a decorator of a command it passes its value as `name`."""

    name: str

    @abstractmethod
    def add(self, function: Any) -> Any:
        """Return the function with the options, as click passes them."""

    @abstractmethod
    def value(self, given: dict[str, Any]) -> Any:
        """Take what click passed out of `given`, and return the value."""

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def with_value(*args: Any, **given: Any) -> Any:
            value = self.value(given)
            return function(*args, **{self.name: value}, **given)

        return cast(F, self.add(with_value))


class Option(OptionPart):
    """One option, as `click.option` takes it, with its default shown; `parse` converts a value."""

    _declare: Callable[..., Decorator] = staticmethod(click.option)
    _class: type[click.Parameter] = click.Option

    def __init__(self, *names: str, parse: Callable[[Any], Any] | None = None, **attributes: Any) -> None:
        if attributes.get("default"):
            attributes.setdefault("show_default", True)
        self._add = self._declare(*names, **attributes)
        self.name = attributes.pop("cls", self._class)(names, **attributes).name
        self._parse = parse

    def add(self, function: Any) -> Any:
        return self._add(function)

    def value(self, given: dict[str, Any]) -> Any:
        value = given.pop(self.name)
        return value if value is None or self._parse is None else self._parse(value)


class Argument(Option):
    """One argument, as `click.argument` takes it."""

    _declare = staticmethod(click.argument)
    _class = click.Argument


class TimeOption(click.Option):
    """An option that takes a time; its command gets --timezone as well."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.help = f"{self.help} A time without a zone is UTC (see --timezone)."


def option_zone() -> tzinfo | None:
    """Return the zone that --timezone gives to times without an offset; None: UTC."""
    zone: tzinfo | None = click.get_current_context().meta.get(_ZONE)
    return zone


def _set_zone(context: click.Context, _: click.Parameter, name: str | None) -> None:
    if name is None:
        return
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones  # noqa: PLC0415 - most commands need none

    try:
        context.meta[_ZONE] = ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        near = difflib.get_close_matches(name, available_timezones(), 3)
        raise UsageError(
            f"--timezone {name[:80]!r} is not a time zone",
            why="the IANA time zone database has no zone of that name",
            remedy=f"write {joined(near, 'or')}" if near else "write a name such as Europe/Berlin or UTC",
        ) from error


_ZONE = f"{__name__}.zone"
zone_option = click.option(
    "--timezone",
    metavar="NAME",
    is_eager=True,
    expose_value=False,
    callback=_set_zone,
    help="Zone of times that name none, such as Europe/Berlin. The default is UTC.",
)


class OptionSet(OptionPart):
    """Options that make one value: `make` gets the value of each part by its name."""

    def __init__(self, name: str, make: Callable[..., Any], *parts: OptionPart) -> None:
        self.name = name
        self._make, self._parts = make, parts

    def add(self, function: Any) -> Any:
        return with_options(function, [part.add for part in self._parts])

    def value(self, given: dict[str, Any]) -> Any:
        return self._make(**{part.name: part.value(given) for part in self._parts})


def with_options(function: F, options: Sequence[Decorator]) -> F:
    """Return the function with all of these decorators, the first one outermost."""
    decorated: Any = function
    for option in reversed(options):
        decorated = option(decorated)
    return cast(F, decorated)


def choice_option(*names: str, choices: Sequence[str], **attributes: Any) -> Option:
    """Return an option that takes one of `choices`, the first by default."""
    return Option(*names, type=click.Choice(choices), default=choices[0], **attributes)


class Parsed(click.ParamType[Any]):
    """A type whose values a function parses; its ValueError is a usage error."""

    def __init__(self, name: str, parse: Callable[[Any], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


# A size such as `128MiB`, as bytes.
SIZE = Parsed("size", parse_size)
# A duration such as `5m`, as seconds.
DURATION = Parsed("duration", parse_duration)


# Passes `dry_run: bool`.
dry_run_option = Option("--dry-run", is_flag=True, help="Print the plan and write nothing.")

# Passes `yes: bool`.
yes_option = Option("--yes", is_flag=True, help="Do not ask.")


def plan_options(function: F) -> F:
    """Add --dry-run, --yes, and `as_json: bool`."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print plan and result as JSON.")
    return with_options(function, [dry_run_option, yes_option, as_json])


def report_key_option(*names: str, text: str, **attributes: Any) -> Option:
    """Return the option of the public key that must have signed a report; `text` is its help."""
    path = click.Path(path_type=Path)
    return Option(*names, type=path, envvar="BLOCKGZ_REPORT_KEY", metavar="PEM", help=text, **attributes)


# Passes `sign_key: Path | None`.
sign_key_option = Option(
    "--sign-key",
    type=click.Path(path_type=Path),
    metavar="PEM",
    help="Sign the reports with this Ed25519 key; writes FILE.sig.",
)


def _header_conditions(texts: tuple[str, ...]) -> tuple["Condition", ...]:
    from blockgz.record_filter import header_condition  # noqa: PLC0415 - it loads pyarrow

    return tuple(map(header_condition, texts))


# Passes `headers: tuple[Condition, ...]`.
header_option = Option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Only records with this header; repeat it to require more headers.",
    parse=_header_conditions,
)

# Passes `grep: str | None`.
grep_option = Option("--grep", metavar="REGEX", help="Only records whose value matches (RE2 syntax).")


# The packages of the extra.
_PACKAGES = {"pyspark", "py4j", "pandas", "fastavro", "google"}


@contextmanager
def spark_needed(command: str) -> Iterator[None]:
    """Raise UsageError about the missing extra, with its installation, if an import in the block fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _PACKAGES:
            raise
        raise UsageError(
            f"`{command}` needs {missing}, which is not installed",
            why="Spark is an optional extra, which most commands do not need",
            remedy="pip install 'blockgz[spark]', and Java 17 for it",
        ) from error
