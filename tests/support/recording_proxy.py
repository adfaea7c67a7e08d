"""A proxy before an S3 server that notes what was asked, and refuses what S3 refuses and moto does not."""

import re
import threading

from tests.support.http_proxy import Answer, HttpProxy, Request, error_answer

_ORIGIN = re.compile("^https?://[^/]*")


class RecordingProxy(HttpProxy):
    """Notes every request; also one that was sent to another host by way of it."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.requests: list[Request] = []
        self.refuses_roles = False
        self._notes = threading.Lock()

    def answer(self, request: Request) -> Answer | None:
        """See HttpProxy."""
        with self._notes:
            self.requests.append(request)
        if self.refuses_roles and b"AssumeRole" in request.body:
            return error_answer(403, "AccessDenied")
        headers = {**request.headers, "host": self._upstream}
        return self.forward(request._replace(path=_ORIGIN.sub("", request.path), headers=headers))

    def sent(self, operation: str) -> list[Request]:
        """The requests for one of S3's operations."""
        return [each for each in self.requests if each.operation == operation]
