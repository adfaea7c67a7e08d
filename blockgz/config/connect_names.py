"""Settings of Kafka Connect's S3 sinks, and what becomes of each: the same here, nearly the same, or nothing.

Names and meanings: kafka-connect-s3 (the ancestor), Confluent's S3 sink, and Connect itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

SPARK_NAMES = {
    "path": "archive",
    "endpointUrl": "endpoint_url",
    "region": "region",
    "profile": "profile",
    "proxyUrl": "proxy_url",
    "roleArn": "role_arn",
    "externalId": "external_id",
    "customerKey": "customer_key",
    "accessKeyId": "access_key_id",
    "secretAccessKey": "secret_access_key",
    "sessionToken": "session_token",
    "sse": "sse",
    "kmsKeyId": "kms_key_id",
    "storageClass": "storage_class",
    "acl": "acl",
    "objectTags": "object_tags",
    "checksumAlgorithm": "checksum_algorithm",
    "layout": "layout",
    "recordFormat": "record_format",
    "codec": "codec",
    "gzipLibrary": "gzip_library",
    "gzipLevel": "gzip_level",
    "zstdLevel": "zstd_level",
    "blockBytes": "block_bytes",
    "keyFilter": "key_filter",
    "encrypt": "encrypt",
    "chunkBytes": "chunk_bytes",
    "chunkRecords": "chunk_records",
    "chunkSpan": "chunk_span",
    "isolationLevel": "isolation_level",
    "groupId": "group_id",
    "takeover": "takeover",
    "onGap": "on_gap",
    "memory": "memory",
    "bufferDir": "buffer_dir",
    "singleWriter": "single_writer",
}
"""The option's name, and the field's."""

SPARK_DEFAULTS = {
    "group_id": "blockgz-spark",
    "isolation_level": "read_uncommitted",
    "memory": "128MiB",
}
"""Where they are others than a service's: a sink has a group of its own, Spark's Kafka source reads uncommitted records
unless told otherwise, and several tasks share a machine."""


@dataclass(frozen=True)
class Alias:
    """Another name of a field. `convert` gives the field's text, None to leave it alone, or raises ValueError.

    `note` says what differs, empty where nothing does.
    """

    field: str
    convert: Callable[[str], str | None] = str
    note: str = ""


def _or_none(text: str) -> str | None:
    return text or None


def _milliseconds(text: str) -> str | None:
    """-1 switches the limit off."""
    if not text.removeprefix("-").isdecimal():
        raise ValueError("it must be a whole number of milliseconds")
    return None if text.startswith("-") else f"{text}ms"


def _bad_records(tolerance: str) -> str:
    policies = {"none": "stop", "all": "skip"}
    if tolerance not in policies:
        raise ValueError("it must be none or all")
    return policies[tolerance]


ALIASES: Mapping[str, Alias] = {
    "bootstrap.servers": Alias("bootstrap_servers"),
    "topics.regex": Alias(
        "topics", lambda text: f"~{text}", "the expression uses Python syntax, which is nearly Java's"
    ),
    "s3.region": Alias("region"),
    "s3.endpoint": Alias("endpoint_url"),
    "store.url": Alias("endpoint_url"),
    "s3.proxy.url": Alias("proxy_url", _or_none),
    "s3.credentials.provider.sts.role.arn": Alias("role_arn"),
    "s3.credentials.provider.sts.role.external.id": Alias("external_id"),
    "aws.sts.role.arn": Alias("role_arn"),
    "aws.sts.role.external.id": Alias("external_id"),
    "s3.ssea.name": Alias("sse", _or_none),
    "s3.sse.kms.key.id": Alias("kms_key_id", _or_none),
    "s3.sse.customer.key": Alias("customer_key", _or_none),
    "s3.acl.canned": Alias("acl", _or_none),
    "s3.object.tagging.key.value.pairs": Alias("object_tags", lambda text: text.replace(":", "=") or None),
    "local.buffer.dir": Alias("buffer_dir"),
    "compressed_block_size": Alias("block_bytes"),
    "flush.size": Alias("chunk_records"),
    "rotate.interval.ms": Alias("chunk_span", _milliseconds),
    "rotate.schedule.interval.ms": Alias(
        "chunk_interval",
        _milliseconds,
        "chunks close at this age, not at multiples of it on the wall clock; -1 keeps chunk_interval's default",
    ),
    "tasks.max": Alias("workers"),
    "errors.tolerance": Alias(
        "on_bad_record",
        _bad_records,
        "none is stop, all is skip, or dlq with errors.deadletterqueue.topic.name; it is about records that cannot be "
        "archived",
    ),
    "errors.deadletterqueue.topic.name": Alias("dlq_topic", _or_none),
}
BUCKETS = ("s3.bucket", "s3.bucket.name")
PREFIXES = ("s3.prefix", "topics.dir")
"""A bucket and a prefix make `archive`."""

NOT_USED: Mapping[str, str] = {
    "name": "group_id names the consumer group",
    "connector.class": "the archiver is not a connector; for kafka-connect-s3's object names set layout to seed",
    "s3.path_style": "with an endpoint, path style is always used; without one, AWS's own style",
    "s3.part.size": "uploads go in parts of 16 MiB",
    "s3.part.retries": "the archiver retries as long as it owns the partition",
    "s3.object.tagging": "the index has offsets and counts; for tags of your own set object_tags",
    "s3.object.behavior.on.tagging.error": "tags are stored with the object, or it is not stored",
    "s3.wan.mode": "accelerated endpoints are not used",
    "s3.send.digest": "set checksum_algorithm",
    "s3.retry.backoff.ms": "pauses between requests double, up to some seconds",
    "s3.http.send.expect.continue": "the AWS library decides",
    "storage.class": "the archive's address determines the store",
    "key.converter": "keys are archived byte for byte",
    "key.converter.schemas.enable": "keys are archived byte for byte",
    "value.converter": "values are archived byte for byte",
    "value.converter.schemas.enable": "values are archived byte for byte",
    "header.converter": "headers are archived byte for byte",
    "schema.compatibility": "values are archived byte for byte",
    "behavior.on.null.values": "null values are archived as null",
    "store.kafka.keys": "keys are always archived",
    "store.kafka.headers": "headers are always archived",
    "errors.deadletterqueue.topic.replication.factor": "the topic must exist",
    "errors.deadletterqueue.context.headers.enable": "the context headers are always written",
    "s3.compression.type": "chunks are always compressed; set codec",
}
"""Settings without an equal that change nothing about what is archived: left out, with this note."""

REFUSED: Mapping[str, str] = {
    "format.class": "the archive is lossless JSON lines or text; set record_format, and convert with Spark",
    "partitioner.class": "the archive is laid out by topic and partition; set layout, and partition with Spark",
    "transforms": "the archive keeps records unchanged; transform on replay",
    "predicates": "the archive keeps records unchanged; transform on replay",
    "aws.access.key.id": "credentials come from AWS's own chain; or set access_key_id to a reference",
    "aws.secret.access.key": "credentials come from AWS's own chain; or set secret_access_key to a reference",
    "s3.credentials.provider.class": "credentials come from AWS's own chain: environment, profile, or role_arn",
    "s3.proxy.user": "write it into proxy_url: http://USER:PASSWORD@HOST:PORT",
    "s3.proxy.password": "write it into proxy_url: http://USER:${env:PROXY_PASSWORD}@HOST:PORT",
}
"""Settings without an equal that would change what is archived: an error with this reason."""

REFUSED_PREFIXES: Mapping[str, str] = {
    "consumer.override.": "librdkafka's settings differ from Java's; write kafka. and librdkafka's name",
    "transforms.": REFUSED["transforms"],
    "predicates.": REFUSED["predicates"],
}


def refusal(key: str) -> str | None:
    """Why a setting of Connect's cannot be taken over, or None where nothing is known against it."""
    if key in REFUSED:
        return REFUSED[key]
    return next((reason for prefix, reason in REFUSED_PREFIXES.items() if key.startswith(prefix)), None)
