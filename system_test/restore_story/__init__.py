"""A cluster that is lost in mid-traffic and restored: what producers and consumers noted, and a judge over it."""
