"""Erasing records: found, shown, left out of rewritten chunks, and known to be gone once nothing holds them."""
