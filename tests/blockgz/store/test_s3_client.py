"""One table of errors and one set of options for the clients of both programs."""

from typing import Any

import aiohttp
import pytest
from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    NoRegionError,
    ProfileNotFound,
    UnauthorizedSSOTokenError,
    UnknownServiceError,
)
from botocore.parsers import ResponseParserError

from blockgz.errors import AccessDenied, StoreBusy, StoreError, StoreFull, StoreUnavailable, UsageError
from blockgz.store.address import S3Address
from blockgz.store.s3_client import client_options, s3_errors, setup_errors
from blockgz.store.s3_settings import S3Settings

ADDRESS = S3Address("bucket", "p/")


def raised(error: Exception) -> Exception:
    with pytest.raises(Exception) as caught, s3_errors(ADDRESS, "x", "s3:GetObject", (aiohttp.ClientError,)):
        raise error
    return caught.value


def answer(code: str, status: int) -> ClientError:
    response: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "GetObject")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("TokenRefreshRequired", 400, AccessDenied),
        ("ExpiredToken", 400, AccessDenied),
        ("400", 400, AccessDenied),
        ("XAdminUserNotFound", 403, AccessDenied),
        ("", 401, AccessDenied),
        ("AuthorizationHeaderMalformed", 400, UsageError),
        ("PermanentRedirect", 301, UsageError),
        ("RequestTimeTooSkewed", 403, AccessDenied),
        ("SignatureDoesNotMatch", 403, AccessDenied),
        ("403", 403, AccessDenied),
        ("KMS.DisabledException", 400, AccessDenied),
        ("KMS.KMSInvalidStateException", 400, AccessDenied),
        ("KMS.ThrottlingException", 400, StoreBusy),
        ("KMS.KMSInternalException", 500, StoreBusy),
        ("RequestTimeout", 400, StoreBusy),
        ("InternalError", 500, StoreBusy),
        ("OfItsOwn", 503, StoreBusy),
        ("OfItsOwn", 403, AccessDenied),
        ("XMinioStorageFull", 507, StoreFull),
        ("NotImplemented", 501, StoreError),
        ("NoSuchBucket", 404, StoreError),
        ("SlowDown", 503, StoreBusy),
        ("", 502, StoreBusy),
        ("InvalidRequest", 400, StoreError),
    ],
)
def test_answers(code: str, status: int, kind: type[Exception]) -> None:
    assert type(raised(answer(code, status))) is kind


@pytest.mark.parametrize(
    ("code", "remedy"),
    [("RequestTimeTooSkewed", "clock"), ("ExpiredToken", "renew"), ("KMS.DisabledException", "key"), ("403", "grant")],
)
def test_what_to_do_about_a_refusal(code: str, remedy: str) -> None:
    caught = raised(answer(code, 403))
    assert isinstance(caught, AccessDenied) and remedy in caught.remedy


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CredentialRetrievalError(provider="none", error_msg="it failed"), AccessDenied),
        (UnauthorizedSSOTokenError(), AccessDenied),
        (RuntimeError("the refreshed credentials are still expired."), AccessDenied),
        (RuntimeError("cannot schedule new futures"), RuntimeError),
        (ResponseParserError("invalid XML received"), StoreUnavailable),
        (NoRegionError(), UsageError),
        (TimeoutError(), StoreUnavailable),
        (aiohttp.ServerDisconnectedError(), StoreUnavailable),
        (UnknownServiceError(service_name="s4", known_service_names=""), StoreError),
    ],
)
def test_errors_of_the_client(error: Exception, kind: type[Exception]) -> None:
    assert type(raised(error)) is kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CredentialRetrievalError(provider="none", error_msg="it failed"), AccessDenied),
        (ProfileNotFound(profile="none"), UsageError),
        (ValueError("Invalid endpoint: x"), UsageError),
    ],
)
def test_clients_that_cannot_be_made(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught, setup_errors(S3Settings("x")):
        raise error
    assert type(caught.value) is kind


def test_our_own_errors_pass() -> None:
    error = StoreUnavailable("down")
    assert raised(error) is error


@pytest.mark.parametrize(("endpoint_url", "style"), [(None, "auto"), ("http://127.0.0.1:9000", "path")])
def test_checksums_are_optional_wherever_the_store_is(endpoint_url: str | None, style: str) -> None:
    options = client_options(S3Settings(endpoint_url), connections=1, attempts=1)
    assert options["s3"] == {"addressing_style": style}
    assert options["request_checksum_calculation"] == options["response_checksum_validation"] == "when_required"
