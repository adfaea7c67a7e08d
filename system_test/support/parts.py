"""`python -m system_test.support.parts`: fetch or build ahead what the system tests would otherwise wait for."""

import sys
from collections.abc import Callable

from system_test.support import kafka_broker, spark
from system_test.support.environment import PartMissingError
from system_test.support.java_clients import connect_jars
from system_test.support.object_store import versitygw_program

_PARTS: tuple[Callable[[], object], ...] = (
    *(kafka_broker.kafka_jars, spark.kafka_jars, spark.avro_jar, connect_jars, kafka_broker.keep_broker_classes),
    *(spark.keep_spark_classes, versitygw_program),
)


def main() -> None:
    """Fetch all of them; a part that cannot be had is named, and the test that needs it tells more."""
    for part in _PARTS:
        try:
            part()
        except PartMissingError as error:
            print(error, file=sys.stderr)


if __name__ == "__main__":
    main()
