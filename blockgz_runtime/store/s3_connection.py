"""What is set for S3 beside an archive's address."""

from dataclasses import dataclass


@dataclass(frozen=True)
class S3Connection:
    """Where S3's API is and as whom it is asked; credentials come from AWS's own chain on each machine."""

    endpoint_url: str | None = None
    """None at AWS; another one is addressed path style."""
    region: str | None = None
    profile: str | None = None
    """Of AWS's configuration files; None for what the environment says."""


AT_AWS = S3Connection()
"""Everything as the environment says."""
