"""The keys of encrypted archives: sources, and wrapped keys."""
