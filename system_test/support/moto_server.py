"""moto's server with one write at a time: `python -m system_test.support.moto_server -p PORT`.

moto looks whether an object is there and writes it then, so that of two conditional writes at once both may win.
"""

import io
import threading
from collections.abc import Iterable
from typing import Any

import moto.server

_run = moto.server.run_simple


class OneWriteAtATime:
    """A WSGI application in front of another one; a body is read before its turn, however slowly it comes."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._turn = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            answer: Iterable[bytes] = self._application(environ, start_response)
            return answer
        if environ.get("CONTENT_LENGTH"):
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        with self._turn:
            return list(self._application(environ, start_response))


def _run_in_turns(host: str, port: int, application: Any, **options: Any) -> None:
    _run(host, port, OneWriteAtATime(application), **options)


if __name__ == "__main__":
    moto.server.run_simple = _run_in_turns
    moto.server.main()
