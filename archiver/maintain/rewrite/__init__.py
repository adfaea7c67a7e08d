"""Rewriting committed chunks beside a living writer, as generators without I/O: see docs/lifecycle.md."""
