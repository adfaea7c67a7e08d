from hypothesis import settings

from tests.support.sampling import LONG

settings.register_profile(
    "index_format", derandomize=True, deadline=None, max_examples=200 if LONG else 25, database=None
)
settings.load_profile("index_format")
