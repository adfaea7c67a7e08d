"""`archiver demo`."""

import click


@click.command()
def demo() -> None:
    """The main job end to end with nothing installed."""
