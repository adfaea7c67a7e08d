"""The operators' view of a running archiver: a snapshot on demand, as metrics, health and status."""
