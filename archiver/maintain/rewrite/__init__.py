"""Rewrite committed chunks while a writer runs; generators without I/O, see docs/lifecycle.md."""
