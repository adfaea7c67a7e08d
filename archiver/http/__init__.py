"""What a running archiver serves over HTTP."""
