"""The configuration of both programs: from flags, environment and file to one RunConfig, and where values are from."""
