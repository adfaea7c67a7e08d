"""Topics as the archive describes them and as a cluster has them: compared, and made alike."""
