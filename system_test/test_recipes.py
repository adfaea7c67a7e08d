"""The recipes of docs/recipes.md as they stand: ways to log in, and the least rights, on a real broker and moto."""

import base64
import json
import re
import shlex
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import boto3
import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
)

from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import MotoServer
from system_test.support.programs import Completed, run
from system_test.support.topics import NewRecord, create_topic, produce

PAGE = (Path(__file__).parent.parent / "docs/recipes.md").read_text()
PASSWORD = "of the archiver"
SECRET = "of the token server's client"
COUNT = 50
PROTOCOLS = {
    "PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", "SCRAM": "SASL_SSL", "TLS": "SSL", "TOKEN": "SASL_SSL",
}  # fmt: skip


class Files(NamedTuple):
    """Certificates and keys as PEM."""

    ca: Path
    server: Path
    client: Path
    client_key: Path
    password: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    home = tmp_path_factory.mktemp("pem")
    ca_key, ca_name = ec.generate_private_key(ec.SECP256R1()), _name("ca")
    ca = _certificate(ca_name, ca_key.public_key(), ca_name, ca_key, is_ca=True)
    found = Files(*(home / name for name in ("ca.pem", "server.pem", "client.pem", "client-key.pem", "password")))
    found.ca.write_bytes(_pem(ca))
    found.password.write_text(PASSWORD)
    for name, certificate, key_file in (
        ("broker", found.server, found.server),
        ("archiver", found.client, found.client_key),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        made = _pem(_certificate(_name(name), key.public_key(), ca_name, ca_key))
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        certificate.write_bytes(made)
        key_file.write_bytes(text + made if key_file == certificate else text)
    return found


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    by: ec.EllipticCurvePrivateKey,
    *,
    is_ca: bool = False,
) -> x509.Certificate:
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
    made = made.not_valid_after(now + timedelta(days=2))
    made = made.add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    return made.add_extension(names, critical=False).sign(by, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def tokens() -> Iterator[str]:
    """The URL of a token server that knows one client; its tokens are not signed."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            known = base64.b64encode(f"archiver:{SECRET}".encode()).decode()
            is_known = known in self.headers.get("Authorization", "")
            now = int(datetime.now(UTC).timestamp())
            claims = {"sub": "archiver", "iat": now, "exp": now + 300}
            parts = [_encoded({"alg": "none", "typ": "JWT"}), _encoded(claims), ""]
            body = json.dumps({"access_token": ".".join(parts), "token_type": "bearer", "expires_in": 300}).encode()
            self.send_response(200 if is_known else 401)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body if is_known else b"{}")

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/token"
    server.shutdown()
    server.server_close()


def _encoded(content: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def broker(files: Files) -> Iterator[KafkaBroker]:
    """One that lets its administrator do everything on a listener of its own, and others what they were granted."""
    tls = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files.server),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files.ca),
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/",
    }
    settings = {
        f"listener.name.{name}.{key}": value for name in ("scram", "tls", "token") for key, value in tls.items()
    }
    module = "org.apache.kafka.common.security"
    settings |= {
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.scram.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        "listener.name.tls.ssl.client.auth": "required",
        "listener.name.token.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.token.oauthbearer.sasl.jaas.config": f"{module}.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with KafkaBroker(settings, listeners=("SCRAM", "TLS", "TOKEN")) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        made = admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("archiver", credential, PASSWORD.encode())]
        )
        made["archiver"].result()
        for topic in ("orders", "orders-copy"):
            create_topic(broker.bootstrap, topic, 2, {"retention.ms": "-1"})
        produce(
            broker.bootstrap, "orders", [NewRecord(b"%d" % number, partition=number % 2) for number in range(COUNT)]
        )
        with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as rights:
            rights.create_acls(list(granted()))
        yield broker


def granted() -> Iterator[ACL]:
    """What the page's commands add."""
    for line in re.findall(r"^kafka-acls (.*)$", PAGE, re.MULTILINE):
        words = shlex.split(line)
        given = [(name.removeprefix("--"), value) for name, value in pairwise(words)]
        named = dict(given)
        kinds = {
            "topic": ResourceType.TOPIC,
            "group": ResourceType.GROUP,
            "transactional-id": ResourceType.TRANSACTIONAL_ID,
            "cluster": ResourceType.CLUSTER,
        }
        (kind,) = named.keys() & kinds.keys()
        is_prefix = named.get("resource-pattern-type") == "prefixed"
        pattern = ACLResourcePatternType.PREFIXED if is_prefix else ACLResourcePatternType.LITERAL
        resource = ResourcePattern(kinds[kind], named[kind], pattern)
        for name, value in given:
            if name == "operation":
                operation = ACLOperation[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", value).upper()]
                yield ACL(named["allow-principal"], "*", operation, ACLPermissionType.ALLOW, resource)


RECIPES = {"SCRAM": "SCRAM", "Mutual TLS": "TLS", "OAuth 2.0 (OIDC)": "TOKEN"}


@pytest.fixture
def recipe(request: pytest.FixtureRequest, broker: KafkaBroker, files: Files, tokens: str, tmp_path: Path) -> Path:
    """The configuration below a heading, with the addresses and files of the tests."""
    section = PAGE.partition(f"## {request.param}\n")[2]
    text = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)[0]
    for shown, ours in {
        "s3://backup/kafka": str(tmp_path / "archive"),
        "broker:9093": broker.bootstrap_of(RECIPES[request.param]),
        "/etc/kafka/ca.pem": files.ca,
        "/etc/kafka/archiver.pem": files.client,
        "/etc/kafka/archiver-key.pem": files.client_key,
        "/run/secrets/kafka-password": files.password,
        "https://login.example.com/oauth2/token": tokens,
    }.items():
        text = text.replace(shown, str(ours))
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("recipe", RECIPES, indirect=True)
@pytest.mark.parametrize("without", ["", "1"], ids=["in C", "without C"])
def test_a_recipe_archives_replays_and_proves(recipe: Path, without: str, tmp_path: Path) -> None:
    def done(program: str, *arguments: str) -> Completed:
        env = {"OIDC_SECRET": SECRET, "BLOCKGZ_NO_KERNEL": without, "XDG_STATE_HOME": str(tmp_path)}
        return run(program, *arguments, "-C", str(recipe), env=env)

    archived = done("archiver", "run", "--once", "--json")
    assert json.loads(archived.stdout)["records"] == COUNT
    assert "denied" not in archived.stderr and "topic_config_unknown" not in archived.stderr
    config = json.loads((tmp_path / "archive/topic=orders/_topic_config.json").read_bytes())
    assert {"READ", "DESCRIBE_CONFIGS"} == {each["operation"] for each in config["acls"]}
    job = f"of-{tmp_path.name}".replace("_", "-").strip("-")[:40]
    words = ("replay", "orders", "--to-topic", "orders-copy", "--yes", "--job", job, "--transactional", "--append")
    copied = done("replayer", *words)
    assert "does not tell" not in copied.stderr, copied.stderr
    assert json.loads(done("replayer", "verify", "--job", job, "--json").stdout)["verdict"] == "OK"


@pytest.mark.parametrize("recipe", ["SCRAM"], indirect=True)
def test_a_right_that_is_missing_is_among_the_remedies(recipe: Path, broker: KafkaBroker) -> None:
    right = ResourcePattern(ResourceType.TOPIC, "orders")
    taken = ACL("User:archiver", "*", ACLOperation.READ, ACLPermissionType.ALLOW, right)
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_acls([ACLFilter(taken.principal, "*", taken.operation, taken.permission_type, right)])
        try:
            refused = run("archiver", "run", "--once", "-C", str(recipe), check=2)
        finally:
            admin.create_acls([taken])
    # Without any right to a topic, nothing tells it from one that is not there.
    assert "the cluster has no topic 'orders'" in refused.stderr and "the right to Describe it" in refused.stderr


@pytest.fixture(scope="module")
def store() -> Iterator[MotoServer]:
    """An S3 server that asks what its users may do, from `obeyed` on."""
    with MotoServer("backup") as server:
        yield server


def obeyed(store: MotoServer, name: str, policy: dict[str, Any]) -> dict[str, str]:
    """The environment of a new user with this policy."""
    _ask_nobody_before(store, 1_000_000)
    iam = boto3.client(
        "iam",
        endpoint_url=store.endpoint_url,
        aws_access_key_id=store.env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=store.env["AWS_SECRET_ACCESS_KEY"],
        region_name="us-east-1",
    )
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="least", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName=name)["AccessKey"]
    iam.close()
    _ask_nobody_before(store, 0)
    own = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    return {**store.env, **own, "BLOCKGZ_ENDPOINT_URL": store.endpoint_url}


def _ask_nobody_before(store: MotoServer, requests: int) -> None:
    """From the request of that number on, moto obeys policies."""
    plain = {"Content-Type": "text/plain"}  # as a form it would not be read
    urlopen(Request(f"{store.endpoint_url}/moto-api/reset-auth", b"%d" % requests, plain, method="POST")).close()


def policy(*without: str) -> dict[str, Any]:
    """That of the page, less some actions."""
    found: dict[str, Any] = json.loads(re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0])
    for statement in found["Statement"]:
        statement["Action"] = [action for action in statement["Action"] if action not in without]
    return found


def test_the_least_rights_in_s3_are_enough(store: MotoServer, broker: KafkaBroker) -> None:
    archive = ("-a", "s3://backup/kafka")
    writer = obeyed(store, "writer", policy())
    orders = ("run", "orders", "-b", broker.bootstrap, "--once", "--json")
    assert json.loads(run("archiver", *orders, *archive, env=writer).stdout)["records"] == COUNT
    reader = obeyed(store, "reader", policy("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"))
    checked = run("replayer", "verify", "--deep", "--records", "--json", *archive, env=reader)
    assert json.loads(checked.stdout)["verdict"] == "OK"
    refused = run("archiver", *orders, *archive, env=reader, check=12)
    assert "PutObject" in refused.stderr or "denied" in refused.stderr.lower()
