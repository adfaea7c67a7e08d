"""A broker that takes no password: it speaks of Kafka's protocol what it takes to be told one."""

import socketserver
import struct
import threading
from typing import Any

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
UNSUPPORTED_VERSION, AUTHENTICATION_FAILED = 35, 58


class SaslBroker:
    """Remembers the passwords that clients tell by SASL PLAIN, and refuses them all, repeating them in the error."""

    def __init__(self) -> None:
        self.passwords: list[str] = []
        passwords = self.passwords

        class Connection(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while len(size := self.rfile.read(4)) == 4:
                    request = self.rfile.read(struct.unpack(">i", size)[0])
                    if len(request) < 10:
                        return
                    api, version, correlation, client = struct.unpack(">hhih", request[:10])
                    body = request[10 + max(client, 0) :]
                    answer = struct.pack(">i", correlation) + _answer(api, version, body, passwords)
                    self.wfile.write(struct.pack(">i", len(answer)) + answer)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client went away."""

        self._server = Server(("127.0.0.1", 0), Connection)
        host, port = self._server.server_address[:2]
        self.bootstrap_servers = f"{host!s}:{port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _answer(api: int, version: int, body: bytes, passwords: list[str]) -> bytes:
    match api:
        case _ if api == API_VERSIONS:
            offered = [(SASL_HANDSHAKE, 0, 1), (API_VERSIONS, 0, 0), (SASL_AUTHENTICATE, 0, 0), (3, 0, 1)]
            error = UNSUPPORTED_VERSION if version else 0
            return struct.pack(">hi", error, len(offered)) + b"".join(struct.pack(">hhh", *each) for each in offered)
        case _ if api == SASL_HANDSHAKE:
            return struct.pack(">hi", 0, 1) + _text("PLAIN")
        case _ if api == SASL_AUTHENTICATE:
            password = body[4:].split(b"\0")[2].decode()
            passwords.append(password)
            message = _text(f"the password {password} is wrong")
            return struct.pack(">h", AUTHENTICATION_FAILED) + message + struct.pack(">i", 0)
        case _:
            raise AssertionError(f"a client that is not known asks {api}")


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
