"""How many files the process may open."""

import resource

from blockgz.errors import UsageError


def allow_open_files(needed: int) -> None:
    """Lets the process open so many files, if the hard limit does; raises UsageError where it does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UsageError(
            f"this process may open at most {hard} files",
            why=f"it needs about {needed}, for connections to brokers and for the archive",
            remedy=f"raise the limit: ulimit -n {needed}, or LimitNOFILE= in a systemd unit",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
