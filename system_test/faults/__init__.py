"""The fault campaign: real archivers, a real broker and a real S3 server, with faults at seeded random times.

`python -m system_test.faults --help`; what it proves, and its figures: docs/faults.md.
"""
