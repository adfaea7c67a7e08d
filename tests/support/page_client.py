"""The page's application in this process, asked as a browser or a program asks it."""

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import uvicorn
from starlette.testclient import TestClient

from blockgz.archive.archive import ArchivePlace
from blockgz.store.address import LocalAddress
from replayer.serve.app import make_app
from replayer.serve.settings import Access, ServeSettings

URL = "http://127.0.0.1:8080"
BROWSER = {"accept": "text/html,*/*"}


def settings_of(root: Path, access: Access | None = None, **more: Any) -> ServeSettings:
    return ServeSettings(ArchivePlace(LocalAddress(str(root))), access or Access("127.0.0.1"), **more)


@contextmanager
def page_client(settings: ServeSettings, client: str = "127.0.0.1") -> Iterator[TestClient]:
    """A client, while the service behind it runs; redirects are not followed."""
    app = make_app(settings)
    with TestClient(app, base_url=URL, client=(client, 50_000), follow_redirects=False) as asking:
        yield asking


def get_page(asking: TestClient, path: str, status: int = 200) -> str:
    """A page as a browser gets it, once the archive has been looked at."""
    while True:
        answer = asking.get(path, headers=BROWSER)
        assert answer.status_code == status, answer.text
        if "Reading the archive" not in answer.text:
            return answer.text


def form_token(asking: TestClient, path: str = "/verify") -> str:
    """What a form of the page brings back."""
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', asking.get(path, headers=BROWSER).text)
    assert found is not None
    return found[1]


def send_form(asking: TestClient, path: str, **fields: str) -> Any:
    """Sends a form as a browser does; gives the answer."""
    token = form_token(asking)
    return asking.post(path, data={"csrf": token, **fields}, headers=BROWSER | {"origin": URL})


@contextmanager
def page_server(settings: ServeSettings, **more: Any) -> Iterator[str]:
    """The application behind a real port, in a thread, with more of uvicorn's settings; gives its URL."""
    config = uvicorn.Config(
        make_app(settings), log_level="error", access_log=False, timeout_graceful_shutdown=1, **more
    )
    server = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0))
    thread = Thread(target=asyncio.run, args=(server.serve([listening]),))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
