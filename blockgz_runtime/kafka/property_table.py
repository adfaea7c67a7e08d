"""The settings that librdkafka knows, in its own words: what `-X list` prints."""

import ctypes
import tempfile
from importlib import import_module

from blockgz_runtime.errors import UsageError


def property_table() -> str:
    """Name, client (producer or consumer), range, default and description of every setting.

    The library prints to a C stream only, so that a file takes it. Raises UsageError where this build cannot.
    """
    client = import_module("confluent_kafka.cimpl")  # here, so that commands which ask no cluster do not load it
    library, process = ctypes.CDLL(client.__file__), ctypes.CDLL(None)
    try:
        show = library.rd_kafka_conf_properties_show
    except AttributeError as error:
        raise UsageError(
            "this build of librdkafka does not tell its settings",
            why=str(error),
            remedy="see CONFIGURATION.md of librdkafka",
        ) from error
    process.fopen.restype = ctypes.c_void_p
    show.restype, show.argtypes = None, [ctypes.c_void_p]
    process.fclose.argtypes = [ctypes.c_void_p]
    with tempfile.NamedTemporaryFile() as file:
        stream = process.fopen(file.name.encode(), b"w")
        show(stream)
        process.fclose(stream)
        return file.read().decode()
