"""Pages of the site that stand elsewhere in the repository, and the reference of the commands, made from the programs.

Hooks of mkdocs: https://www.mkdocs.org/user-guide/configuration/#hooks
"""

import re
from collections.abc import Iterator
from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from archiver.cli import main as archiver
from replayer.cli import main as replayer

ROOT = Path(__file__).parents[2]
MOVED = {"README.md": "index.md", "FORMAT.md": "format.md", "CHANGELOG.md": "changes.md"}
"""Pages at the top of the repository, and their names here."""
WIDTH = 88


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in this folder."""
    for name, page in MOVED.items():
        text = _links((ROOT / name).read_text(), config.repo_url or "")
        files.append(File.generated(config, page, content=text))
    for program in (archiver, replayer):
        text = f"# {program.name}\n\n" + "\n".join(_commands(program, str(program.name)))
        files.append(File.generated(config, f"{program.name}.md", content=text))
    return files


def on_page_markdown(markdown: str, config: MkDocsConfig, **_: object) -> str:
    """Leads links out of this folder to the pages above, or to the repository."""
    for name, page in MOVED.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    return markdown.replace("](../", f"]({config.repo_url}/blob/main/")


def _links(text: str, repository: str) -> str:
    """A page of the top: what it links to in docs/ is here, the rest is in the repository."""
    for name, page in MOVED.items():
        text = text.replace(f"]({name}", f"]({page}")
    text = re.sub(r'(\]\(|srcset="|src=")docs/', r"\1", text)
    return re.sub(r"\]\((?!https?:|#)([\w/.-]+)", lambda found: _elsewhere(found, repository), text)


def _elsewhere(found: re.Match[str], repository: str) -> str:
    is_here = (ROOT / "docs" / found[1]).exists() or found[1] in MOVED.values()
    return found[0] if is_here else f"]({repository}/blob/main/{found[1]}"


def _commands(command: click.Command, path: str) -> Iterator[str]:
    """Help pages of a command and of those below it."""
    context = click.Context(command, info_name=path, max_content_width=WIDTH, terminal_width=WIDTH)
    yield f"## {path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _commands(inner, f"{path} {name}")
