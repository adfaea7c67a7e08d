"""Options of commands: each is declared once, and those that belong together reach the command as one value.

The configuration file of both programs, -C, is the archiver's. Other commands take the defaults of their options from
it, as far as they share them with `archiver run`: the archive, the settings of S3 and of Kafka. Only the names of its
other keys are checked.
"""

import ctypes
import difflib
import functools
import importlib
import os
import shlex
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click
from click.core import ParameterSource

from blockgz.errors import UsageError, joined
from blockgz.hosts import unencrypted_brokers
from blockgz.kafka.secrets import refuse_code
from blockgz.store.address import S3Settings
from blockgz.units import parse_duration, parse_size

if TYPE_CHECKING:
    from blockgz.config.files import Settings
    from blockgz.record_filter import Condition

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]


class LocalPath(click.Path):
    """A file or folder of this machine; the address of an object is refused before anything is done."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).startswith("s3://"):
            self.fail(f"{value} is not a local file; name one, and copy it with aws s3 cp", param, ctx)
        return super().convert(value, param, ctx)


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
    path = LocalPath(path_type=Path)
    return Option(*names, type=path, envvar="BLOCKGZ_REPORT_KEY", metavar="PEM", help=text, **attributes)


# Passes `sign_key: Path | None`.
sign_key_option = Option(
    "--sign-key",
    type=LocalPath(path_type=Path),
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


# The parameter of -C.
CONFIG = "config"
# The field that gives the default of a command's parameter; `kafka_options` merges other settings of Kafka.
SHARED = {
    "archive": "archive",
    "bootstrap_server": "bootstrap_servers",
    "bootstrap_servers": "bootstrap_servers",
    "encrypt": "encrypt",
    "keyring": "encrypt",
    **{each.name: each.name for each in fields(S3Settings)},
}
_LOADED = f"{__name__}.file"


class UsedConfig(NamedTuple):
    """The file that a command uses, and its settings."""

    path: Path | None
    settings: "Settings"
    notes: tuple[str, ...]

    @property
    def place(self) -> str:
        """The name of the file in a remedy."""
        return str(self.path) if self.path else "a configuration file (-C)"


def config_path(given: str | None, environ: Mapping[str, str]) -> Path | None:
    """Return the file of -C or BLOCKGZ_CONFIG, or `$XDG_CONFIG_HOME/blockgz/config.yaml` if it exists."""
    # XDG_CONFIG_HOME is ~/.config if it is not set.
    if given:
        return Path(given)
    named = environ.get("XDG_CONFIG_HOME", "")
    try:
        home = Path(named) if Path(named).is_absolute() else Path.home() / ".config"
    except RuntimeError:
        return None
    path = home / "blockgz" / "config.yaml"
    return path if os.path.exists(path) else None  # noqa: PTH110 - False where the folder may not be read


def used_config() -> UsedConfig:
    """Return the file that the current command has loaded."""
    used: UsedConfig = click.get_current_context().meta.get(_LOADED, UsedConfig(None, {}, ()))
    return used


def config_option() -> click.Option:
    """Return -C, which makes the file's values defaults of the command's options; see `used_config`."""
    return click.Option(
        ["-C", f"--{CONFIG}"],
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        envvar="BLOCKGZ_CONFIG",
        callback=_load_config,
        help="Settings in YAML, Java properties or Connect's JSON; options and environment variables override them. "
        " [default: ~/.config/blockgz/config.yaml, if it exists]",
    )


def _load_config(context: click.Context, _: click.Parameter, given: str | None) -> None:
    path = config_path(given, os.environ)
    if path is not None:
        use_config(context, path)


def use_config(context: click.Context, path: Path) -> None:
    """Make the file's values the defaults of the context's command; raises UsageError for a wrong file."""
    from blockgz.config.files import read_config_file  # noqa: PLC0415 - it loads pydantic and a YAML parser
    from blockgz.config.resolution import check_kafka, text_of  # noqa: PLC0415

    settings, notes = read_config_file(path)
    check_kafka(settings)
    context.meta[_LOADED] = UsedConfig(path, settings, notes)
    context.default_map = {
        param: functools.partial(text_of, field, settings[field], os.environ)
        for param, field in SHARED.items()
        if field in settings
    }


def kafka_defaults() -> dict[str, str]:
    """Return the file's settings of Kafka, by librdkafka's names; references to secrets are not resolved."""
    settings = used_config().settings
    if not settings:
        return {}
    from blockgz.config.resolution import check_kafka  # noqa: PLC0415

    return check_kafka(settings)


PROPERTIES_VARIABLE = "BLOCKGZ_KAFKA_PROPERTIES"


def kafka_options(bootstrap_help: str = "The Kafka cluster.", *, required: bool = False) -> OptionSet:
    """Return -b/--bootstrap-server and -X, which pass librdkafka's properties as `kafka: dict[str, str]`.

    If a property is given twice, -b comes before -X, and this before the configuration file. References to secrets are
    resolved when a client is made.
    """
    bootstrap = Option(
        *("-b", "--bootstrap-server"), cls=_Brokers, required=required, metavar="HOST:PORT", help=bootstrap_help
    )
    return OptionSet("kafka", _cluster, bootstrap, properties_option("properties"))


class _Brokers(click.Option):
    """The option of brokers: those of -X count as given, before those of the configuration file."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        value, source = super().consume_value(ctx, opts)
        named = kafka_properties(ctx.params.get("properties") or ()).get("bootstrap.servers")
        if named and source not in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
            return named, ParameterSource.COMMANDLINE
        return value, source


def _cluster(bootstrap_server: str | None, properties: tuple[str, ...]) -> dict[str, str]:
    bootstrap = {"bootstrap.servers": bootstrap_server} if bootstrap_server else {}
    kafka = kafka_defaults() | kafka_properties(properties) | bootstrap
    broker = unencrypted_brokers(kafka)
    if broker is not None:
        click.echo(
            f"warning: the connection to Kafka at {broker} is not encrypted: security.protocol is not SSL", err=True
        )
    return kafka


def properties_option(parameter: str) -> Option:
    """Return -X, which passes `parameter: tuple[str, ...]`, as written; `-X list` prints all properties and exits."""
    return Option(
        "-X",
        parameter,
        type=_PropertyType(),
        multiple=True,
        envvar=PROPERTIES_VARIABLE,
        metavar="NAME=VALUE",
        callback=_given_properties,
        is_eager=True,
        help="A librdkafka setting; may be repeated. -X list prints all.",
    )


class _PropertyType(click.types.StringParamType):
    def split_envvar_value(self, rv: str) -> Sequence[str]:
        return split_properties(PROPERTIES_VARIABLE, rv)


def split_properties(variable: str, text: str) -> list[str]:
    """Return pairs that white space separates, quoted as in a shell if a value has spaces; raises UsageError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"{variable} cannot be read", why=f"{error}", remedy="write NAME=VALUE pairs with spaces between them"
        ) from error


def kafka_properties(pairs: Iterable[str]) -> dict[str, str]:
    """Return settings from `name=value` pairs; raises UsageError."""
    properties = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise UsageError(
                f"-X {name[:80]!r} is not NAME=VALUE",
                why="a setting is a name, = and a value",
                remedy="write -X security.protocol=SSL; -X list prints the names",
            )
        properties[name.strip()] = value
    return properties


def _given_properties(context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> tuple[str, ...]:
    if "list" in pairs and not context.resilient_parsing:
        click.echo(property_table(), nl=False)
        context.exit()
    if context.get_parameter_source(str(parameter.name)) is ParameterSource.ENVIRONMENT:
        for name, value in kafka_properties(pairs).items():
            refuse_code(name, value, f"{PROPERTIES_VARIABLE}: {name}")
    return pairs


def property_table() -> str:
    """Return name, client, range, default and description of every setting, in librdkafka's words.

    The library prints only to a C stream, so it prints to a file. Raises UsageError if this build cannot.
    """
    client = importlib.import_module(
        "confluent_kafka.cimpl"
    )  # here, so that commands which ask no cluster do not load it
    library, process = ctypes.CDLL(client.__file__), ctypes.CDLL(None)
    try:
        show = library.rd_kafka_conf_properties_show
    except AttributeError as error:
        raise UsageError(
            "this build of librdkafka does not list its settings",
            why=str(error),
            remedy="see librdkafka's CONFIGURATION.md",
        ) from error
    process.fopen.restype = ctypes.c_void_p
    show.restype, show.argtypes = None, [ctypes.c_void_p]
    process.fclose.argtypes = [ctypes.c_void_p]
    with tempfile.NamedTemporaryFile() as file:
        stream = process.fopen(file.name.encode(), b"w")
        show(stream)
        process.fclose(stream)
        return file.read().decode()
