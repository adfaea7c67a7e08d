"""BrokerLogins of `replayer broker`: the exchange of RFC 7677, unknown users, false proofs, and the file."""

import base64
import secrets
from pathlib import Path

import pytest

from blockgz.errors import UsageError
from replayer.broker.users import BrokerLogins, LoginFailed, ScramKeys, User, _keys, new_user, read_users, write_user

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SHA_256 = "SCRAM-SHA-256"


@pytest.fixture
def logins(monkeypatch: pytest.MonkeyPatch) -> BrokerLogins:
    monkeypatch.setattr(secrets, "token_urlsafe", lambda _: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    keys = _keys("pencil", SALT, 4096, "sha256")
    return BrokerLogins({"user": User(name="user", topics=("*",), scram={SHA_256: keys})})


def test_the_exchange_of_the_rfc(logins: BrokerLogins) -> None:
    said, exchange = logins.begin(SHA_256, b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert said.decode() == f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    last = f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    said, user = logins.finish(SHA_256, exchange, last.encode())
    assert said == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=" and user.name == "user"
    for wrong in (last.replace("p=dH", "p=dA"), last.replace("biws", "eSws"), last.replace(",r=rO", ",r=xO"), "p=", ""):
        with pytest.raises(LoginFailed):
            logins.finish(SHA_256, exchange, wrong.encode())


def test_an_unknown_user_gets_a_salt_that_stays_and_fails_at_the_end(logins: BrokerLogins) -> None:
    (first, exchange), (again, _) = (logins.begin(SHA_256, b"n,,n=nobody,r=x") for _ in range(2))
    assert first == again and b"i=" in first
    for keys in (b"", b"\0" * 32):
        empty = ScramKeys(4096, b"", keys, keys)
        with pytest.raises(LoginFailed):
            logins.finish(SHA_256, exchange._replace(keys=empty), b"c=biws,r=" + exchange.nonce.encode() + b",p=")


@pytest.mark.parametrize("message", [b"", b"p=tls-unique,,n=user,r=x", b"\xff", b"n,,n=" + b"x" * 5000])
def test_a_message_that_is_not_understood_fails(logins: BrokerLogins, message: bytes) -> None:
    with pytest.raises(LoginFailed):
        logins.begin(SHA_256, message)


def test_a_plain_login_is_checked_against_the_same_keys(logins: BrokerLogins) -> None:
    assert logins.plain(b"\0user\0pencil").name == "user"
    for wrong in (b"\0user\0pen", b"\0nobody\0pencil", b"\0user", b"", b"\0\0", b"\0user\0pencil\0"):
        with pytest.raises(LoginFailed):
            logins.plain(wrong)


def test_a_file_of_users(tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_user(path, new_user("anna", ("orders", "pay-*"), "one"))
    write_user(path, new_user("ben", (), "two"))
    write_user(path, new_user("anna", ("orders",), "three"))
    users = read_users(path)
    assert list(users) == ["anna", "ben"] and path.stat().st_mode & 0o777 == 0o600
    assert [users["anna"].may_read(topic) for topic in ("orders", "pay-1")] == [True, False]
    assert users["ben"].may_read("anything")
    assert BrokerLogins(users).plain(b"\0anna\0three").name == "anna"


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "has no users"), ("{}", "line 1 of"), ("not json", "line 1 of"), ("{}\n" * 2, "line 1 of")],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "users"
    path.write_text(text)
    with pytest.raises(UsageError, match=reason):
        read_users(path)


def test_keys_that_are_easily_guessed_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_user(path, User(name="anna", topics=("*",), scram={SHA_256: _keys("x", SALT, 1000, "sha256")}))
    with pytest.raises(UsageError, match="cannot be used"):
        read_users(path)
    with pytest.raises(UsageError, match="password is empty"):
        new_user("anna", (), "")
