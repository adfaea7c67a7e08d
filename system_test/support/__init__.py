"""What the system tests stand on: broker, object stores, foreign client, corpus, programs."""

import warnings

# kafka-python reads its message schemas, while it is imported, by functions that Python 3.11 calls deprecated; the
# tests turn warnings into errors. Imported here once, with those warnings off, it is at hand for the modules below.
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", r"(read|open)_text is deprecated", DeprecationWarning)
    import kafka  # noqa: F401
