"""Help pages: examples, options in groups with the most used first, exit codes; nothing is cut."""

import click

OWN = "Options"
# The groups of options in the order of the page, by parameter; an option without a group is the command's own.
GROUPS = {
    "Archive and cluster": ("archive", "bootstrap_server", "bootstrap_servers", "properties", "kafka"),
    OWN: (),
    "Selection": (
        *("start", "end", "at", "offset_file", "offsets", "since", "until", "timezone", "partitions"),
        *("keys", "null_key", "headers", "grep", "sample", "limit"),
    ),
    "Changes to records": (
        *("routing", "timestamps", "strip_headers", "add_headers", "provenance", "tombstones"),
        *("chain", "on_transform_error", "allow_unchanged", "compression"),
    ),
    "Target topic": (
        *("create_topic", "topic_config", "append", "into_source", "retention", "undo_retention"),
        *("replication_factor", "reset_extra", "ignored"),
    ),
    "Consumer groups": ("globs", "no_groups", "rename", "approximate"),
    "Warm standby": ("follow_archive", "every", "status", "switch_over"),
    "Jobs": ("resume", "job", "jobs", "partial", "patience", "rate", "speed"),
    "Output": ("as_json", "form", "template", "as_envelope", "raw", "stats"),
    "Reports": ("paths", "sign_key", "since_report", "key"),
    "Chunks and blocks": (
        *("chunk_bytes", "chunk_records", "chunk_interval", "chunk_idle", "chunk_span", "block_bytes", "key_filter"),
        *("layout", "record_format", "encrypt", "codec", "gzip_library", "gzip_level", "zstd_level"),
    ),
    "Reading from Kafka": (
        *("isolation_level", "group_id", "group_protocol", "group_instance_id", "topic_refresh"),
        *("on_gap", "on_bad_record", "dlq_topic", "groups", "groups_interval", "ends_interval"),
    ),
    "Maintenance": (
        *("archive_retention", "archive_retention_bytes", "compact", "compact_chunks"),
        *("maintenance_interval", "maintenance_rate", "maintenance_buffer"),
    ),
    "Process": (
        *("workers", "memory", "buffer_dir", "buffer_bytes", "grace", "http", "log_format"),
        *("single_writer", "takeover"),
    ),
    "Reading archives": ("keyring", "on_damage", "cache", "max_block_bytes", "old_format", "key_delimiter"),
    "Spark": ("on_spark", "master", "jars", "settings", "task_bytes", "min_tasks", "digests", "checkpoint"),
    "S3": (
        *("region", "endpoint_url", "profile", "role_arn", "external_id", "proxy_url", "customer_key"),
        *("access_key_id", "secret_access_key", "session_token"),
        *("sse", "kms_key_id", "storage_class", "acl", "object_tags", "checksum_algorithm"),
    ),
    "Program": ("config", "verbose", "debug", "version", "help"),
}
_GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}


class HelpPage(click.Command):
    """A command with such a help page."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        examples, _, rest = (self.epilog or "").partition("\n\n")
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        _write(formatter, examples)
        self.format_options(ctx, formatter)
        _write(formatter, rest)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_options(self, ctx, formatter)


class HelpPageOfGroup(HelpPage, click.Group):
    """A group with such a help page: commands first, each with the whole first sentence of its help."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        _write_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(1000)) for name, each in commands.items() if each])


def _write(formatter: click.HelpFormatter, text: str) -> None:
    if text:
        formatter.write_paragraph()
        formatter.write_text(text)


def _write_options(command: click.Command, context: click.Context, formatter: click.HelpFormatter) -> None:
    found: dict[str, dict[str, tuple[str, str]]] = {group: {} for group in GROUPS}
    for param in command.get_params(context):
        name = "help" if param is command.get_help_option(context) else str(param.name)
        if isinstance(param, click.Option) and (record := param.get_help_record(context)) is not None:
            found[_GROUP_OF.get(name, OWN)][name] = record
    for group, records in found.items():
        order = [name for name in GROUPS[group] if name in records] or list(records)
        if order:
            with formatter.section(group):
                formatter.write_dl([records[name] for name in order])
