"""Topics of an archive restored together to a cluster, as of one time: planned, replayed, proved, groups set."""
