"""What Python programs call: an archive, opened by `replayer.open_archive` and used without asyncio."""
