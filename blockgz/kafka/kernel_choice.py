"""Whether the C extension that reads from and writes to librdkafka is in use; Python does it else."""

from typing import Any

from index_format.kernel_choice import chosen

_INTERFACE = 1


def _load() -> Any:
    import blockgz.kafka._kernel as kernel  # type: ignore[import-not-found]  # noqa: PLC0415

    return kernel


KERNEL = chosen(_load, _INTERFACE)
"""In C: batches from and to librdkafka."""
