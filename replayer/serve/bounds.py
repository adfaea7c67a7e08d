"""Answers that hold memory or a connection for long: so many at once, each until it is sent."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from blockgz.errors import StoreBusy

PIECE_BYTES = 64 * 1024


@dataclass
class Bound:
    """So many answers of a kind at once."""

    most: int
    kind: str
    held: int = 0

    def take(self) -> None:
        """One more; raises StoreBusy where there are enough."""
        if self.held >= self.most:
            raise StoreBusy(f"{self.held} {self.kind} are being sent", remedy="close some of them, and try again")
        self.held += 1

    def give_back(self) -> None:
        """One less."""
        self.held -= 1


class BoundedAnswer(StreamingResponse):
    """An answer in parts, one of a bound until the last part is sent or its client went away; raises StoreBusy."""

    def __init__(
        self, bound: Bound, parts: AsyncIterator[bytes], media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(parts, media_type=media_type, headers=headers)
        self._bound = bound
        bound.take()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._bound.give_back()


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    """A body in pieces, so that no more of it is copied than its client takes."""
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]
        await asyncio.sleep(0)  # other requests have their turn, and a client that left is noticed
