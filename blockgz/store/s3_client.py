"""Code that both S3 clients share: options, credentials, the table of S3's errors, and these errors as ours."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    LoginError,
    MetadataRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
)
from botocore.loaders import Loader, create_loader
from botocore.parsers import ResponseParserError
from botocore.session import Session
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential
from urllib3.exceptions import HTTPError

from blockgz import errors
from blockgz.references import naming, resolve_references
from blockgz.store.address import CREDENTIALS, S3Address, S3Settings

CONNECT_SECONDS = 5
READ_SECONDS = 60
# The name of this program in AWS's logs of a role.
ROLE_SESSION = "blockgz"
# Attempts by the client itself, with pauses of up to some seconds; after that the caller decides.
REQUEST_ATTEMPTS = 4
# Attempts to read a body that breaks off.
BODY_ATTEMPTS = 4
P = ParamSpec("P")
R = TypeVar("R")


def _codes(names: str) -> frozenset[str]:
    return frozenset(names.split())


MISSING = _codes("404 NoSuchKey")
CONDITION_FAILED = _codes("412 PreconditionFailed")
CONFLICT = _codes("409 ConditionalRequestConflict")
PAST_THE_END = _codes("416 InvalidRange")
# Here 400 is the code of an answer without a body, as HEAD gets it for a token that has expired.
_STALE = _codes(
    "400 ExpiredToken ExpiredTokenException InvalidAccessKeyId InvalidClientTokenId InvalidIdentityToken InvalidToken "
    "SignatureDoesNotMatch TokenRefreshRequired UnrecognizedClientException XAdminUserNotFound"
)
_SKEWED = _codes("RequestExpired RequestInTheFuture RequestTimeTooSkewed")
# Begins the codes of the service that keeps the bucket's key; their status is 400.
_KEY = "KMS."
_KEY_BUSY = _codes(
    "KMS.DependencyTimeoutException KMS.InternalException KMS.KMSInternalException KMS.KeyUnavailableException "
    "KMS.LimitExceededException KMS.ThrottlingException"
)
_DENIED = _codes("401 403 AccessDenied AllAccessDisabled Forbidden")
_BUSY = _codes(
    "408 429 500 502 503 504 BadDigest BandwidthLimitExceeded IDPCommunicationError IncompleteBody InternalError "
    "OperationAborted "
    "PriorRequestNotComplete RequestLimitExceeded RequestThrottled RequestThrottledException RequestTimeout "
    "RequestTimeoutException ServiceUnavailable SlowDown ThrottledException Throttling ThrottlingException "
    "TooManyRequests TooManyRequestsException XAmzContentSHA256Mismatch"
)
_FULL = _codes("507 InsufficientStorage QuotaExceeded XMinioAdminBucketQuotaExceeded XMinioStorageFull")
# Answers to a write with a condition by stores that have no conditional writes, or their own idea of them.
_UNCONDITIONAL = _codes("304 501 NotImplemented NotModified")
_CONDITIONAL_WRITES = {"PutObject", "CompleteMultipartUpload"}
_ELSEWHERE = _codes("301 307 AuthorizationHeaderMalformed PermanentRedirect")
_NO_CREDENTIALS = (
    CredentialRetrievalError,
    LoginError,
    MetadataRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
)
_NO_ANSWER = (ConnectionError, HTTPClientError, HTTPError, IncompleteReadError, ResponseParserError, TimeoutError)


def retried(broken: tuple[type[Exception], ...]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Repeat a function, asynchronous or not, while the body that it reads breaks off: botocore repeats no bodies."""
    return retry(
        retry=retry_if_exception_type(broken),
        stop=stop_after_attempt(BODY_ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.1, max=5),
        reraise=True,
    )


S = TypeVar("S", bound=Session)


def open_session(kind: type[S], s3: S3Settings, assume: Callable[[S3Settings], Any] | None = None) -> S:
    """Return a session with credentials of the role, those that the settings refer to, or those of AWS's chain.

    `assume` returns the credentials of the role that the settings name; without it, they are those of its caller.
    Raises UnresolvedReference, and ProfileNotFound.
    """
    session = kind(profile=s3.profile)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    if assume is not None and s3.role_arn is not None:
        session.register_component("credential_provider", SimpleNamespace(load_credentials=partial(assume, s3)))
        return session
    given = {name: reference for name in CREDENTIALS if (reference := getattr(s3, name)) is not None}
    if given:
        session.set_credentials(*(_looked_up(name, reference) for name, reference in given.items()))
    return session


@cache
def _loader(data_path: str | None) -> Loader:
    """Return a reader of the SDK's descriptions of services: megabytes of JSON, parsed once in a process."""
    loader: Loader = create_loader(data_path)
    return loader


def _looked_up(name: str, reference: str) -> str:
    with naming(name, remedy="write ${file:/path} or ${env:NAME}"):
        return resolve_references(reference, os.environ)


def client_options(
    s3: S3Settings, *, connections: int, attempts: int, read_seconds: int = READ_SECONDS
) -> dict[str, Any]:
    """Arguments of a botocore Config. Other stores than AWS know neither virtual hosts nor AWS's newer checksums."""
    return {
        "max_pool_connections": connections,
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": read_seconds,
        "retries": {"mode": "standard", "total_max_attempts": attempts},
        "proxies": s3.proxy_url and {"http": s3.proxy_url, "https": s3.proxy_url},
        "s3": {"addressing_style": "path" if s3.endpoint_url else "auto"},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }


def role_fetcher(s3: S3Settings) -> Callable[[], dict[str, Any]]:
    """Return what fetches credentials of the role that is to be assumed. Raises NoCredentialsError without own ones."""
    own = open_session(Session, s3)
    credentials = own.get_credentials()
    if credentials is None:
        raise NoCredentialsError
    config = Config(**client_options(s3, connections=1, attempts=REQUEST_ATTEMPTS))
    create = partial(own.create_client, region_name=s3.region, config=config)
    named = {"ExternalId": s3.external_id, "RoleSessionName": ROLE_SESSION}
    more = {name: value for name, value in named.items() if value is not None}
    fetch: Callable[[], dict[str, Any]] = AssumeRoleCredentialFetcher(
        create, credentials, role_arn=str(s3.role_arn), extra_args=more
    ).fetch_credentials
    return fetch


@contextmanager
def setup_errors(s3: S3Settings) -> Iterator[None]:
    """Raise UsageError if a client cannot be made, AccessDenied where its credentials cannot be had."""
    try:
        yield
    except errors.BlockgzError:
        raise
    except _NO_CREDENTIALS as error:
        raise _without_credentials(error) from error
    except (ValueError, BotoCoreError) as error:
        why = str(error) if isinstance(error, BotoCoreError) else f"{s3.endpoint_url!r} is not an endpoint: {error}"
        raise errors.UsageError(
            "the S3 client cannot be set up",
            why=why,
            remedy="check --endpoint-url (http://HOST:PORT), --region and --profile",
        ) from error


def error_code(error: ClientError) -> str:
    """S3's name of the error; the status where the answer has no body."""
    return str(error.response.get("Error", {}).get("Code", ""))


@contextmanager
def s3_errors(
    address: S3Address, key: str, permissions: str, no_answer: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Raise botocore's errors as ours.

    `permissions` are those that the program needs, `no_answer` errors of the client's own HTTP library.
    """
    unanswered: tuple[type[Exception], ...] = (*_NO_ANSWER, *no_answer)
    try:
        yield
    except _NO_CREDENTIALS as error:
        raise _without_credentials(error) from error
    except NoRegionError as error:
        raise errors.UsageError("no AWS region is set", why=str(error), remedy="give --region or AWS_REGION") from error
    except ParamValidationError as error:
        raise errors.UsageError(f"{address} is not an S3 address", why=" ".join(str(error).split())) from error
    except unanswered as error:
        raise errors.StoreUnavailable(
            f"{address} does not answer",
            why=str(error) or type(error).__name__,
            remedy="check --endpoint-url, --region and the network",
        ) from error
    except ClientError as error:
        if error.operation_name == "AssumeRole":
            raise errors.AccessDenied(
                "the role cannot be assumed",
                why=str(error),
                remedy="check --role-arn and --external-id, and that the role trusts these credentials",
            ) from error
        raise _refusal(error, address, key, permissions) from error
    except BotoCoreError as error:
        raise errors.StoreError(f"{address}: the request for {key!r} failed", why=str(error)) from error
    except RuntimeError as error:
        if "credentials" not in str(error):  # botocore has no class for new ones that have expired already
            raise
        raise _without_credentials(error) from error


def _without_credentials(error: Exception) -> errors.AccessDenied:
    return errors.AccessDenied(
        "no usable AWS credentials were found",
        why=str(error),
        remedy="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or use an instance role",
    )


def _refusal(error: ClientError, address: S3Address, key: str, permissions: str) -> errors.BlockgzError:
    """Return the first of code and status that says enough: S3 answers with 403 to a clock that is wrong, too."""
    if error_code(error) == "InvalidObjectState":
        return errors.StoreError(
            f"{address}/{key} has to be restored before it can be read",
            why=str(error),
            remedy="restore it (aws s3api restore-object), and keep lifecycle rules from moving chunks",
        )
    status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
    for answer in (error_code(error), "" if status == "400" else status):
        if answer in _UNCONDITIONAL and error.operation_name in _CONDITIONAL_WRITES:
            return errors.unfit_store(address, f"answers {answer} to a conditional write")
        refusal = _refusal_of(answer, error, address, key, permissions)
        if refusal is not None:
            return refusal
    return errors.StoreError(
        f"{address}/{key}: the request was refused", why=str(error), remedy="check --archive and --endpoint-url"
    )


def _refusal_of(
    answer: str, error: ClientError, address: S3Address, key: str, permissions: str
) -> errors.BlockgzError | None:
    why = str(error)
    if answer == "NoSuchBucket":
        return errors.StoreError(
            f"there is no bucket {address.bucket!r}",
            why=why,
            remedy=f"create it (aws s3 mb s3://{address.bucket}) or correct --archive",
        )
    if answer in _BUSY | _KEY_BUSY:
        return errors.StoreBusy(f"{address} answered {answer}", why=why, remedy="try again later")
    if answer in _FULL:
        return errors.StoreFull(f"{address} is full", why=why, remedy="free space, or raise the quota")
    if answer in _ELSEWHERE:
        return errors.UsageError(
            f"bucket {address.bucket} is in another region", why=why, remedy="give its region with --region"
        )
    if answer in _SKEWED:
        remedy = "set this machine's clock (NTP)"
    elif answer in _STALE:
        remedy = "renew the credentials, or use others"
    elif answer.startswith(_KEY):
        remedy = f"check the key of bucket {address.bucket}, and that these credentials may use it"
    elif answer in _DENIED:
        why += "; a missing object answers like this too where s3:ListBucket is not granted"
        remedy = f"grant {permissions} on bucket {address.bucket} to these credentials, or use others"
    else:
        return None
    denied = errors.AccessDenied(f"access to {address}/{key} was denied", why=why, remedy=remedy)
    denied.has_cause = not answer.isdecimal()
    return denied
