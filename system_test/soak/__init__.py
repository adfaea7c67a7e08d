"""The soak test: thousands of partitions on one archiver, and steady load for as long as one likes.

`python -m system_test.soak --help`; figures: docs/soak.md.
"""
