"""The users of a broker and their logins: SCRAM (RFC 5802) with keys in a file, never passwords; PLAIN over TLS."""

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import msgspec

from blockgz.errors import UsageError

# By mechanism, the hash.
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
PLAIN = "PLAIN"
_LEAST_ITERATIONS, _ITERATIONS, _MOST_ITERATIONS = 4096, 8192, 1_000_000
_SALT_BYTES = 24
_MOST_TEXT = 1000
_WITHOUT_BINDING = re.compile(r"[ny],(?:a=[^,]*)?,")


class LoginFailed(Exception):
    """The user is unknown, or the proof is wrong."""


class ScramKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys by which a server checks a password, and which do not suffice to log in."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class User(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the file: a user, and the topics that it may read."""

    name: str
    topics: tuple[str, ...]
    """Names or globs."""
    scram: dict[str, ScramKeys]
    """Keys by mechanism."""

    def may_read(self, topic: str) -> bool:
        """Return whether a topic is among the user's."""
        return any(fnmatchcase(topic, pattern) for pattern in self.topics)


def new_user(name: str, topics: tuple[str, ...], password: str) -> User:
    """Return a user with keys made from a password."""
    if not name or not name.isprintable() or len(name) > _MOST_TEXT:
        raise UsageError(f"{name[:80]!r} cannot name a user", why="it is empty, too long, or has control characters")
    if not password:
        raise UsageError("the password is empty", remedy="give one on the first line of standard input")
    scram = {}
    for mechanism, digest in HASHES.items():
        salt = os.urandom(_SALT_BYTES)
        scram[mechanism] = _keys(password, salt, _ITERATIONS, digest)
    return User(name=name, topics=topics or ("*",), scram=scram)


def _keys(password: str, salt: bytes, iterations: int, digest: str) -> ScramKeys:
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    stored = hashlib.new(digest, hmac.digest(salted, b"Client Key", digest)).digest()
    return ScramKeys(iterations, salt, stored, hmac.digest(salted, b"Server Key", digest))


def read_users(path: Path) -> dict[str, User]:
    """Return the users of a file by name; raise UsageError."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the users in {path} cannot be read", why=str(error)) from error
    users: dict[str, User] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            user = msgspec.json.decode(line, type=User)
        except msgspec.DecodeError as error:
            raise UsageError(
                f"line {number} of {path} is not a user",
                why=str(error),
                remedy=f"write lines with: replayer broker --users {path} --add-user NAME",
            ) from error
        weak = [
            name for name, keys in user.scram.items() if not _LEAST_ITERATIONS <= keys.iterations <= _MOST_ITERATIONS
        ]
        if weak or not user.scram or set(user.scram) - set(HASHES) or user.name in users:
            raise UsageError(
                f"line {number} of {path} cannot be used",
                why=f"user {user.name!r} is there twice, or its keys are none that this version makes",
                remedy="write the line again with --add-user, and delete the other one",
            )
        users[user.name] = user
    if not users:
        raise UsageError(
            f"{path} has no users", remedy=f"add one: replayer broker --users {path} --add-user NAME < PASSWORD_FILE"
        )
    return users


def write_user(path: Path, user: User) -> None:
    """Add a user to a file that only its owner can read, or replace its line; raise UsageError."""
    try:
        kept = read_users(path) if path.exists() and path.stat().st_size else {}
        lines = [msgspec.json.encode(each).decode() for each in {**kept, user.name: user}.values()]
        written = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        written.touch(0o600, exist_ok=False)
        written.write_text("\n".join(lines) + "\n")
        written.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written", why=error.strerror or str(error)) from error


class Exchange(NamedTuple):
    """A SCRAM login after its first message."""

    user: User | None
    keys: ScramKeys
    first: str
    """The client's first message without its head, and the server's answer."""
    nonce: str
    head: str


class BrokerLogins:
    """Checks logins."""

    def __init__(self, users: Mapping[str, User]) -> None:
        self.users = users
        # Unknown users get a salt that stays the same, so that nobody learns which names exist.
        self._secret = os.urandom(32)

    def begin(self, mechanism: str, message: bytes) -> tuple[bytes, Exchange]:
        """Return the server's first message; raise LoginFailed for one that is not understood."""
        text = _text(message)
        head = _WITHOUT_BINDING.match(text)
        if head is None:
            raise LoginFailed("channel binding is not offered")
        bare = text[head.end() :]
        fields = _fields(bare)
        name = fields.get("n", "").replace("=2C", ",").replace("=3D", "=")
        user = self.users.get(name)
        keys = None if user is None else user.scram.get(mechanism)
        if keys is None:
            salt = hmac.digest(self._secret, name.encode(), "sha256")[:_SALT_BYTES]
            keys, user = ScramKeys(_ITERATIONS, salt, b"", b""), None
        nonce = fields.get("r", "") + secrets.token_urlsafe(24)
        answer = f"r={nonce},s={base64.b64encode(keys.salt).decode()},i={keys.iterations}"
        return answer.encode(), Exchange(user, keys, f"{bare},{answer}", nonce, head.group())

    def finish(self, mechanism: str, exchange: Exchange, message: bytes) -> tuple[bytes, User]:
        """Return the server's last message and the user; raise LoginFailed."""
        digest, text = HASHES[mechanism], _text(message)
        without_proof, _, proof = text.rpartition(",p=")
        fields = _fields(without_proof)
        binding = base64.b64encode(exchange.head.encode()).decode()
        said = f"{exchange.first},{without_proof}".encode()
        signature = hmac.digest(exchange.keys.stored_key, said, digest)
        try:
            given = base64.b64decode(proof, validate=True)
        except binascii.Error:
            given = b""
        key = bytes(a ^ b for a, b in zip(given, signature, strict=False))
        is_right = hmac.compare_digest(hashlib.new(digest, key).digest(), exchange.keys.stored_key)
        is_same = fields.get("r") == exchange.nonce and fields.get("c") == binding and len(given) == len(signature)
        if exchange.user is None or not is_right or not is_same:
            raise LoginFailed("wrong user or password")
        answer = base64.b64encode(hmac.digest(exchange.keys.server_key, said, digest))
        return b"v=" + answer, exchange.user

    def plain(self, message: bytes) -> User:
        """Return the user of a PLAIN login, checked against the keys; raise LoginFailed. Takes milliseconds."""
        parts = _text(message).split("\0")
        name, password = parts[1:] if len(parts) == len(("", "name", "password")) else ("", "")
        user = self.users.get(name)
        mechanism, keys = (
            next(iter(user.scram.items())) if user else ("SCRAM-SHA-256", ScramKeys(_ITERATIONS, b"", b"", b""))
        )
        found = _keys(password, keys.salt, keys.iterations, HASHES[mechanism])
        if user is None or not hmac.compare_digest(found.stored_key, keys.stored_key):
            raise LoginFailed("wrong user or password")
        return user


def _text(message: bytes) -> str:
    try:
        text = message.decode()
    except UnicodeDecodeError as error:
        raise LoginFailed("a message that is not UTF-8") from error
    if len(text) > _MOST_TEXT:
        raise LoginFailed("a message that is too long")
    return text


def _fields(text: str) -> dict[str, str]:
    return {each[0]: each[2:] for each in text.split(",") if each[1:2] == "="}
