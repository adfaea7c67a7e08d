"""The blockgz archive format as pure functions over bytes and values; FORMAT.md is its specification.

Nothing here reads a clock, a file, a socket or an environment variable, but that BLOCKGZ_NO_KERNEL=1 leaves the C
extension out.
"""
