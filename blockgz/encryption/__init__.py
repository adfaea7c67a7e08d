"""The keys of encrypted archives: where they are, and what they wrap."""
