import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from archiver.ingest.topics import SingleFlight

DEADLINE_SECONDS = 30


class Broker:
    """Answers with the number of the question, each once it is let; fails where it is told to."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.let = threading.Semaphore(0)
        self.asked = 0
        self.failing: set[int] = set()

    def ask(self, about: str) -> str:
        self.asked += 1
        number = self.asked
        self.begun.release()
        assert self.let.acquire(timeout=DEADLINE_SECONDS)
        if number in self.failing:
            raise ConnectionError(f"{about} {number}")
        return f"{about} {number}"


def test_who_asks_while_a_question_is_on_its_way_shares_the_next_one() -> None:
    broker = Broker()
    questions = SingleFlight(broker.ask)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(questions.answer, "orders")
        assert broker.begun.acquire(timeout=DEADLINE_SECONDS)
        joined = threading.Barrier(9)

        def late() -> str:
            joined.wait(DEADLINE_SECONDS)
            return questions.answer("orders")

        others = [pool.submit(late) for _ in range(8)]
        joined.wait(DEADLINE_SECONDS)
        # Each of them may still be on its way into the call; a question of another round is then its own.
        broker.let.release()
        assert first.result(DEADLINE_SECONDS) == "orders 1"
        for _ in range(8):
            broker.let.release()
        answers = {other.result(DEADLINE_SECONDS) for other in others}
    assert "orders 1" not in answers, "an answer older than the question"
    assert broker.asked == 1 + len(answers)


def test_a_failure_is_shared_and_forgotten() -> None:
    broker = Broker()
    broker.failing = {1}
    questions = SingleFlight(broker.ask)
    broker.let.release()
    broker.let.release()
    with pytest.raises(ConnectionError, match="orders 1"):
        questions.answer("orders")
    assert questions.answer("orders") == "orders 2"


def test_other_things_are_asked_about_at_the_same_time() -> None:
    broker = Broker()
    questions = SingleFlight(broker.ask)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(questions.answer, topic) for topic in ("orders", "payments")]
        for _ in asked:
            assert broker.begun.acquire(timeout=DEADLINE_SECONDS), "both are on their way"
        broker.let.release()
        broker.let.release()
        assert {each.result(DEADLINE_SECONDS).split()[0] for each in asked} == {"orders", "payments"}
