"""A running archiver and what it serves by HTTP."""

import json
import urllib.error
import urllib.request
from typing import Any

from system_test.support.archiving import Site
from system_test.support.environment import free_port
from system_test.support.programs import Running

_SECONDS = 60


class Service:
    """An archiver of one topic in a consumer group of its own, started here and ended by whoever uses `program`."""

    def __init__(self, site: Site, topic: str, *arguments: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.program: Running = site.start(topic, "--group-id", topic, "--http", self.address, *arguments)

    def get(self, path: str) -> tuple[int, str]:
        """Return the status and the body of an answer; status 0 and an error if there is none."""
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def partitions(self) -> list[dict[str, Any]]:
        status, body = self.get("/status")
        found: list[dict[str, Any]] = json.loads(body)["partitions"] if status == 200 else []
        return found

    def wait_partition(self, what: str, **fields: Any) -> None:
        def is_so() -> bool:
            found = self.partitions()
            return found != [] and [each | fields for each in found] == found

        self.program.wait_for(is_so, _SECONDS, what)
