"""A proxy before an S3 server that notes what was asked, and refuses what S3 refuses and moto does not."""

import re
import threading

from tests.support.http_proxy import Answer, HttpProxy, Request, error_answer

_ORIGIN = re.compile("^https?://[^/]*")

_KEY_DIGEST = "x-amz-server-side-encryption-customer-key-md5"
_READING = {"GetObject", "HeadObject"}
_WRITING = {"PutObject": "", "CompleteMultipartUpload": "", "CreateMultipartUpload": "?"}


class RecordingProxy(HttpProxy):
    """Notes every request; also one that was sent to another host by way of it."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.requests: list[Request] = []
        self.refuses_roles = False
        self._keys: dict[str, str | None] = {}
        """The digest of the customer key of each object and upload, by path."""
        self._notes = threading.Lock()

    def answer(self, request: Request) -> Answer | None:
        with self._notes:
            self.requests.append(request)
        if self.refuses_roles and b"AssumeRole" in request.body:
            return error_answer(403, "AccessDenied")
        path = _ORIGIN.sub("", request.path).partition("?")[0]
        given = request.headers.get(_KEY_DIGEST)
        if request.operation in _READING and self._keys.get(path, given) != given:
            return error_answer(*((403, "AccessDenied") if self._keys[path] and given else (400, "InvalidRequest")))
        if request.operation in ("UploadPart", "CompleteMultipartUpload") and self._keys.get(path + "?") != given:
            return error_answer(400, "InvalidRequest")
        headers = {**request.headers, "host": self._upstream}
        answer = self.forward(request._replace(path=_ORIGIN.sub("", request.path), headers=headers))
        if answer.status == 200 and request.operation in _WRITING:
            self._keys[path + _WRITING[request.operation]] = given
        return answer

    def sent(self, operation: str) -> list[Request]:
        """The requests for one of S3's operations."""
        return [each for each in self.requests if each.operation == operation]
