"""From flags, environment and file to one RunConfig, knowing where every value came from."""
