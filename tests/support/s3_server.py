"""An S3 API in this process, for as long as a test module runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def s3_server() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


class Bucket:
    """A bucket's back door."""

    def __init__(self, endpoint_url: str, name: str, **settings: Any) -> None:
        self.name = name
        self._client = boto3.client(
            "s3",
            endpoint_url=endpoint_url,
            region_name="us-east-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
        self._client.create_bucket(Bucket=name, **settings)

    def retain_for_days(self, days: int) -> None:
        """Sets the default retention of a bucket with Object Lock."""
        rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": days}}
        self._client.put_object_lock_configuration(
            Bucket=self.name, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
        )

    def put(self, key: str, body: bytes, **settings: Any) -> None:
        self._client.put_object(Bucket=self.name, Key=key, Body=body, **settings)

    def head(self, key: str) -> Any:
        return self._client.head_object(Bucket=self.name, Key=key, ChecksumMode="ENABLED")

    def tags(self, key: str) -> dict[str, str]:
        tags = self._client.get_object_tagging(Bucket=self.name, Key=key)["TagSet"]
        return {tag["Key"]: tag["Value"] for tag in tags}

    def grants(self, key: str) -> list[str]:
        """Whom an object's ACL allows what: the group's name, else the kind of grantee, and the permission."""
        grants = self._client.get_object_acl(Bucket=self.name, Key=key)["Grants"]
        return [f"{g['Grantee'].get('URI', g['Grantee']['Type']).rpartition('/')[2]} {g['Permission']}" for g in grants]

    def begin_upload(self, key: str) -> None:
        self._client.create_multipart_upload(Bucket=self.name, Key=key)

    def close(self) -> None:
        self._client.close()
