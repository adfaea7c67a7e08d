"""The probe: sound stores pass and are left clean, each broken promise is named."""

from collections.abc import Callable
from pathlib import Path

import pytest

from blockgz.errors import AccessDenied, StoreUnavailable, StoreUnfit
from blockgz.errors import exit_code as exit_code_of
from blockgz.store.local import LocalStore
from blockgz.store.probe import RACERS, probe
from blockgz.store.writer import Body, FileBody
from tests.support.memory_store import Kept, MemoryStore, content_of, etag_of


class IgnoresConditions(MemoryStore):
    """Answers 200 to everything, as some S3 work-alikes do."""

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        self.objects[key] = Kept(content_of(body), attempt)
        return True

    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        self.objects[key] = Kept(body, None)
        return etag_of(body)


class IgnoresStaleEtags(MemoryStore):
    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        if expected is None:
            return super().compare_and_swap(key, body, None)
        self.objects[key] = Kept(body, None)
        return etag_of(body)


class CreatesOverMarkers(MemoryStore):
    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        if expected is None:
            self.delete(key)
        return super().compare_and_swap(key, body, expected)


class RefusesEverySwap(MemoryStore):
    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        return None if expected else super().compare_and_swap(key, body, expected)


class RefusesToCreate(MemoryStore):
    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        return False


class CompletesPartsOverObjects(MemoryStore):
    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        if isinstance(body, FileBody):
            self.delete(key)
        return super().put_if_absent(key, body, attempt)


class LetsTwoWin(MemoryStore):
    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        return super().put_if_absent(key, body, attempt) or (key.endswith("race") and attempt.endswith("9"))


class LetsNobodyWin(MemoryStore):
    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        return not key.endswith("race") and super().put_if_absent(key, body, attempt)


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (IgnoresConditions, "ignored If-None-Match"),
        (IgnoresStaleEtags, "ignored a stale If-Match"),
        (CreatesOverMarkers, "ignored If-None-Match"),
        (RefusesEverySwap, "refused If-Match with the object's own ETag"),
        (RefusesToCreate, "refused to create"),
        (CompletesPartsOverObjects, "CompleteMultipartUpload"),
        (LetsTwoWin, f"of {RACERS} concurrent"),
        (LetsNobodyWin, f"none of {RACERS}"),
    ],
)
def test_a_broken_promise_is_named(broken: Callable[[], MemoryStore], fault: str) -> None:
    store = broken()
    with pytest.raises(StoreUnfit, match=fault) as caught:
        probe(store, multipart=True)
    assert "--single-writer" in caught.value.remedy and exit_code_of(caught.value) == 1
    assert not store.objects, "the probe cleans up behind itself"


def test_a_sound_store_passes_and_is_left_clean() -> None:
    store = MemoryStore()
    probe(store, multipart=True)
    assert not store.objects


def test_a_local_folder_passes_and_is_left_clean(tmp_path: Path) -> None:
    probe(LocalStore(tmp_path / "archive"), multipart=False)
    assert not list((tmp_path / "archive").rglob("*"))


class IsBusy(MemoryStore):
    """Tells all but one of many that write at once to come again, as S3 does."""

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        if not super().put_if_absent(key, body, attempt):
            if key.endswith("race"):
                raise StoreUnavailable("being written by another request")
            return False
        return True


class LosesTheAnswerOfTheWinner(MemoryStore):
    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        won = super().put_if_absent(key, body, attempt)
        if won and key.endswith("race"):
            raise StoreUnavailable("no answer")
        return won


@pytest.mark.parametrize("busy", [IsBusy, LosesTheAnswerOfTheWinner])
def test_a_race_that_a_sound_store_answers_roughly_is_not_a_fault(busy: Callable[[], MemoryStore]) -> None:
    probe(busy(), multipart=True)


class KeepsWhatItHas(MemoryStore):
    def delete(self, key: str) -> None:
        raise AccessDenied("deleting is not granted")


class IgnoresAndKeeps(IgnoresConditions, KeepsWhatItHas):
    pass


def test_a_writer_that_may_not_delete_passes() -> None:
    probe(KeepsWhatItHas(), multipart=True)


def test_a_refused_delete_hides_no_fault() -> None:
    with pytest.raises(StoreUnfit):
        probe(IgnoresAndKeeps(), multipart=True)


class IsAway(MemoryStore):
    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        raise StoreUnavailable("no answer")

    def delete(self, key: str) -> None:
        raise StoreUnavailable("no answer to that either")


def test_a_store_that_does_not_answer_is_not_called_unfit() -> None:
    with pytest.raises(StoreUnavailable, match=r"^no answer$"):
        probe(IsAway(), multipart=True)
