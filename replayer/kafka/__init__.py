"""Questions to the cluster, and records read from it."""

CLIENT_ID = "blockgz-replayer"
