"""Tests on the real thing: a real broker, a real S3 API, the programs as a user runs them."""
