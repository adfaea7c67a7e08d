from hypothesis import settings

settings.register_profile("index_format", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("index_format")
