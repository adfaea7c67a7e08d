"""The configuration described for people and editors: a commented file, tables for the docs, a JSON Schema."""

from typing import Any

from blockgz.config.connect_names import ALIASES, BUCKETS, NOT_USED, PREFIXES, REFUSED
from blockgz.config.kinds import FIELDS, FieldKind, default_text, field_kind, meaning
from blockgz.config.model import KAFKA_RESERVED, RunConfig
from blockgz.config.resolution import option_name, variable_name

EXAMPLES = {
    "archive": "s3://backup/kafka",
    "bootstrap_servers": "localhost:9092",
    "topics": "[orders]",
    "exclude": "['test-*']",
    "kafka": "{security.protocol: SASL_SSL, sasl.mechanism: SCRAM-SHA-512, sasl.username: archiver, "
    "sasl.password: '${env:KAFKA_PASSWORD}'}",
    "group_id": "archive-of-orders",
    "group_instance_id": "archiver-1",
    "endpoint_url": "http://localhost:9000",
    "region": "eu-central-1",
    "profile": "backup",
    "proxy_url": "http://proxy:3128",
    "role_arn": "arn:aws:iam::123456789012:role/archiver",
    "external_id": "kafka-backup",
    "customer_key": "'${env:CUSTOMER_KEY}'",
    "access_key_id": "'${env:S3_KEY_ID}'",
    "secret_access_key": "'${env:S3_KEY_SECRET}'",
    "session_token": "'${env:S3_SESSION_TOKEN}'",
    "sse": "aws:kms",
    "kms_key_id": "alias/kafka-backup",
    "storage_class": "STANDARD_IA",
    "acl": "bucket-owner-full-control",
    "object_tags": "team=data,env=prod",
    "checksum_algorithm": "SHA256",
    "encrypt": "file:/etc/blockgz/keys",
    "gzip_level": "1",
    "buffer_dir": "/var/lib/blockgz/buffer",
    "dlq_topic": "orders-dead",
    "groups": "['*']",
    "archive_retention": "['audit-*=none', 90d]",
    "archive_retention_bytes": "['clicks-*=500GB']",
    "http": "127.0.0.1:9404",
}
"""Values for fields without a default that could be written, or whose default is not written so in YAML."""


def yaml_template() -> str:
    """A file with every field: the required ones to be filled in, the others commented out at their defaults."""
    lines = [
        "# The configuration of archiver and replayer: -C FILE, BLOCKGZ_CONFIG or ~/.config/blockgz/config.yaml.",
        "# Flags come before environment, environment before this file. Commands other than `archiver run` use the",
        "# archive and the settings of S3 and Kafka.",
        "# ${env:NAME} and ${file:/path} stand for values that do not belong here.",
    ]
    for field, info in FIELDS.items():
        lines += ["", f"# {meaning(field)}"]
        if info.is_required():
            lines.append(f"{field}: {EXAMPLES[field]}")
        elif default_text(field):
            lines.append(f"#{field}: {EXAMPLES.get(field, default_text(field))}")
        else:
            lines += ["# Not set by default. Example:", f"#{field}: {EXAMPLES[field]}"]
    return "\n".join(lines) + "\n"


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a YAML or JSON file with our own names."""
    schema = RunConfig.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "required": []}


def markdown_fields() -> str:
    """The table of fields in docs/configuration.md."""
    rows = ["| field | flag | environment | default | meaning |", "|---|---|---|---|---|"]
    for field, info in FIELDS.items():
        default = f"`{default_text(field)}`" if default_text(field) else "required" if info.is_required() else ""
        flag = option_name(field)
        if field_kind(field) is FieldKind.SWITCH:
            flag += f"`, `{flag.replace('--', '--no-', 1)}"
        rows.append(f"| `{field}` | `{flag}` | `{variable_name(field)}` | {default} | {meaning(field)} |")
    return "\n".join(rows) + "\n"


def markdown_connect_names() -> str:
    """The table of Connect's names in docs/configuration.md."""
    rows = ["| Connect's name | here | note |", "|---|---|---|"]
    rows += [f"| `{name}` | `archive` | the bucket of `s3://bucket/prefix` |" for name in BUCKETS]
    rows += [f"| `{name}` | `archive` | the prefix of `s3://bucket/prefix` |" for name in PREFIXES]
    rows += [f"| `{name}` | `{alias.field}` | {alias.note} |" for name, alias in ALIASES.items()]
    rows += [f"| `{name}` | not used | {note} |" for name, note in NOT_USED.items()]
    rows += [f"| `{name}` | refused | {reason} |" for name, reason in REFUSED.items()]
    return "\n".join(rows) + "\n"


def markdown_reserved() -> str:
    """The table of librdkafka's settings that may not be set, in docs/configuration.md."""
    rows = ["| setting | why |", "|---|---|"]
    rows += [f"| `{name}` | {reason} |" for name, reason in KAFKA_RESERVED.items()]
    return "\n".join(rows) + "\n"
