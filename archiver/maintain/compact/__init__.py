"""Compaction: small neighbouring chunks found, shown, and made into large ones; or all of them encoded again."""
