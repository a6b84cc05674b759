"""Work beside the loop: run in threads, taken up in the loop."""

import select
import threading

from shards.background import InlineBackground, ThreadBackground


def test_a_job_runs_in_a_thread_and_ends_in_the_loop() -> None:
    background = ThreadBackground("test")
    where: list[int] = []
    ends: list[tuple[int, Exception | None]] = []
    background.submit(
        lambda: where.append(threading.get_ident()), lambda error: ends.append((threading.get_ident(), error))
    )
    assert background.busy is True
    assert select.select([background.event_fd], [], [], 10)[0]
    assert not ends
    background.take_done()
    assert where[0] != threading.get_ident()
    assert ends == [(threading.get_ident(), None)]
    still_busy: bool = background.busy
    assert still_busy is False
    background.stop()


def test_what_a_job_raises_reaches_its_end() -> None:
    background = ThreadBackground("test", threads=2)
    errors: list[Exception | None] = []

    def fails() -> None:
        raise ZeroDivisionError

    background.submit(lambda: None, errors.append)
    background.submit(fails, errors.append)
    while background.busy:
        select.select([background.event_fd], [], [], 10)
        background.take_done()
    assert sorted(type(error).__name__ for error in errors) == ["NoneType", "ZeroDivisionError"]
    background.stop()


def test_jobs_that_were_submitted_are_waited_for_at_the_end() -> None:
    background = ThreadBackground("test")
    gate = threading.Event()
    ran: list[int] = []

    def waits() -> None:
        gate.wait()

    background.submit(waits, lambda _: None)
    background.submit(lambda: ran.append(1), lambda _: None)
    gate.set()
    background.stop()
    assert ran == [1]


def test_inline_a_job_has_run_before_its_end_is_taken_up() -> None:
    background = InlineBackground()
    order: list[str] = []
    background.submit(lambda: order.append("job"), lambda _: order.append("end"))
    assert (order, background.busy) == (["job"], True)
    background.take_done()
    assert (order, background.busy) == (["job", "end"], False)
