"""What the S3 clients of both programs share: their options, the table of S3's errors, and these errors as ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    TokenRetrievalError,
)
from urllib3.exceptions import HTTPError

from blockgz_runtime.errors import AccessDenied, StoreBusy, StoreError, StoreUnavailable, UsageError
from blockgz_runtime.store.address import S3Address
from index_format.errors import BlockgzError

CONNECT_SECONDS = 5
READ_SECONDS = 60
REQUEST_ATTEMPTS = 4
"""By the client itself, with pauses of up to some seconds between them; after that the caller decides."""


def _codes(names: str) -> frozenset[str]:
    return frozenset(names.split())


MISSING = _codes("404 NoSuchKey")
CONDITION_FAILED = _codes("412 PreconditionFailed")
CONFLICT = _codes("409 ConditionalRequestConflict")
PAST_THE_END = _codes("416 InvalidRange")
_DENIED = _codes(
    "401 403 AccessDenied AllAccessDisabled ExpiredToken Forbidden InvalidAccessKeyId InvalidToken "
    "SignatureDoesNotMatch TokenRefreshRequired XAdminUserNotFound"
)
_TRANSIENT = _codes(
    "408 429 500 502 503 504 InternalError OperationAborted RequestTimeout RequestTimeTooSkewed ServiceUnavailable "
    "SlowDown Throttling ThrottlingException TooManyRequests"
)
_ELSEWHERE = _codes("301 307 AuthorizationHeaderMalformed PermanentRedirect")
_NO_CREDENTIALS = (CredentialRetrievalError, NoCredentialsError, PartialCredentialsError, TokenRetrievalError)
_NO_ANSWER = (ConnectionError, HTTPClientError, HTTPError, IncompleteReadError, TimeoutError)


def client_options(endpoint_url: str | None, *, connections: int, attempts: int) -> dict[str, Any]:
    """Arguments of a botocore Config. Other stores than AWS know neither virtual hosts nor AWS's newer checksums."""
    return {
        "max_pool_connections": connections,
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "retries": {"mode": "standard", "total_max_attempts": attempts},
        "s3": {"addressing_style": "path" if endpoint_url else "auto"},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }


@contextmanager
def setup_errors(endpoint_url: str | None) -> Iterator[None]:
    """Raises UsageError where a client cannot be made, AccessDenied where its credentials cannot be had."""
    try:
        yield
    except _NO_CREDENTIALS as error:
        raise _without_credentials(error) from error
    except (ValueError, BotoCoreError) as error:
        why = str(error) if isinstance(error, BotoCoreError) else f"{endpoint_url!r} is not an endpoint: {error}"
        raise UsageError(
            "the S3 client cannot be set up",
            why=why,
            remedy="check --endpoint-url (http://HOST:PORT), --region and the AWS profile",
        ) from error


def error_code(error: ClientError) -> str:
    """S3's name of the error; the status where the answer has no body."""
    return str(error.response.get("Error", {}).get("Code", ""))


@contextmanager
def s3_errors(
    address: S3Address, key: str, permissions: str, no_answer: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Raises botocore's errors as ours.

    `permissions` are those that the program needs, `no_answer` errors of the client's own HTTP library.
    """
    unanswered: tuple[type[Exception], ...] = (*_NO_ANSWER, *no_answer)
    try:
        yield
    except _NO_CREDENTIALS as error:
        raise _without_credentials(error) from error
    except NoRegionError as error:
        raise UsageError("no AWS region is set", why=str(error), remedy="give --region or AWS_REGION") from error
    except ParamValidationError as error:
        raise UsageError(f"{address} is not an S3 address", why=" ".join(str(error).split())) from error
    except unanswered as error:
        raise StoreUnavailable(
            f"{address} does not answer",
            why=str(error) or type(error).__name__,
            remedy="check --endpoint-url, --region and the network",
        ) from error
    except ClientError as error:
        raise _refusal(error, address, key, permissions) from error
    except BotoCoreError as error:
        raise StoreError(f"{address}: the request for {key!r} failed", why=str(error)) from error


def _without_credentials(error: BotoCoreError) -> AccessDenied:
    return AccessDenied(
        "no usable AWS credentials were found",
        why=str(error),
        remedy="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or use an instance role",
    )


def _refusal(error: ClientError, address: S3Address, key: str, permissions: str) -> BlockgzError:
    status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
    code = error_code(error) or status
    answers = {code, status}
    if code == "NoSuchBucket":
        return StoreError(
            f"there is no bucket {address.bucket!r}",
            why=str(error),
            remedy=f"create it (aws s3 mb s3://{address.bucket}) or correct --archive",
        )
    if answers & _DENIED:
        return AccessDenied(
            f"access to {address}/{key} was denied",
            why=f"{error}; a missing object answers like this too where s3:ListBucket is not granted",
            remedy=f"grant {permissions} on bucket {address.bucket} to these credentials, or use others",
        )
    if answers & _ELSEWHERE:
        return UsageError(
            f"bucket {address.bucket} is in another region", why=str(error), remedy="give its region with --region"
        )
    if answers & _TRANSIENT:
        return StoreBusy(f"{address} answered {code}", why=str(error), remedy="try again later")
    return StoreError(
        f"{address}/{key}: the request was refused", why=str(error), remedy="check --archive and --endpoint-url"
    )
