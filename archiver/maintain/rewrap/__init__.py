"""Re-wrapping: the keys of encrypted chunks are wrapped with a newer master key, and only indexes are stored again."""
