"""Ask several things at once and get the answers in the order of the questions, or one aside."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

#: Hosted models begin to answer 429 above a handful of long requests.
AT_ONCE = 8
#: How long an interrupted process waits for its threads to note where they stood: on a busy machine
#: a note's way to the disk takes a second.
_GRACE_S = 5.0

Question = TypeVar("Question")
Answer = TypeVar("Answer")


def in_parallel(
    ask: Callable[[Question], Answer], questions: Sequence[Question], give_up: Callable[[], None]
) -> list[Answer]:
    """Ask questions side by side, AT_ONCE at most; returns answers in the order of the questions.

    A single question is asked in this thread. Once a question has failed, those not yet begun are
    left out; when all have ended, the first error in the order of the questions is raised. Threads
    are daemons, because a pool would keep an interrupted process waiting for the slowest model.

    Args:
        give_up: makes the questions under way end soon; called on KeyboardInterrupt.
    """
    if len(questions) == 1:
        return [ask(questions[0])]
    answers: dict[int, Answer] = {}
    failed: dict[int, BaseException] = {}
    slots = threading.Semaphore(AT_ONCE)

    def work(place: int) -> None:
        with slots:
            if failed:
                return
            try:
                answers[place] = ask(questions[place])
            # raised again below, in the thread that asked
            except BaseException as ex:  # noqa: BLE001
                failed[place] = ex

    threads = [
        threading.Thread(target=work, args=(place,), daemon=True) for place in range(len(questions))
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        give_up()
        deadline = time.monotonic() + _GRACE_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        raise
    if failed:
        raise failed[min(failed)]
    return [answers[place] for place in range(len(questions))]


def in_background(ask: Callable[[], Answer]) -> "Future[Answer]":
    """Ask in a thread of its own, a daemon: an interrupted process does not wait for it."""
    future: Future[Answer] = Future()

    def work() -> None:
        try:
            future.set_result(ask())
        # raised again by whoever asks for the result
        except BaseException as ex:  # noqa: BLE001
            future.set_exception(ex)

    threading.Thread(target=work, daemon=True).start()
    return future
