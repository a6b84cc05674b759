"""Who is served first, and that everybody is."""

from shards.command import Command
from shards.mailbox import TURN_COMMANDS, Mailbox
from topics.protocol.messages import Op


def command(topic: str, number: int = 0) -> Command:
    return Command(None, number, Op.WRITE, topic, {}, b"12345", 0, size_bytes=5)


def by_name(order: str) -> Mailbox:
    mailbox = Mailbox()
    for name in order:
        mailbox.put(command(name))
    return mailbox


def served(mailbox: Mailbox, priorities: dict[str, float]) -> list[str]:
    return [name for name, _ in mailbox.turns(lambda name, first: priorities[name])]


def test_the_higher_priority_is_served_first() -> None:
    assert served(by_name("abc"), {"a": 1.0, "b": 500.0, "c": -1000.0}) == ["b", "a", "c"]


def test_equal_priorities_are_served_in_order_of_arrival() -> None:
    assert served(by_name("cab"), {"a": 1.0, "b": 1.0, "c": 1.0}) == ["c", "a", "b"]


def test_commands_of_one_topic_keep_their_order() -> None:
    mailbox = Mailbox()
    for number in range(TURN_COMMANDS + 3):
        mailbox.put(command("a", number))
    seen = []
    while mailbox:
        for name, queue in mailbox.turns(lambda name, first: 0.0):
            seen.append(queue[0].id)
            mailbox.take(name)
    assert seen == list(range(TURN_COMMANDS + 3))


def test_a_held_topic_is_passed_over_and_keeps_its_first_command() -> None:
    mailbox = by_name("ab")
    mailbox.hold("a")
    assert served(mailbox, {"a": 9.0, "b": 1.0}) == ["b"]
    mailbox.take("b")
    before = mailbox.runnable
    assert len(mailbox) == 1
    mailbox.let_go("a")
    assert (before, mailbox.runnable) == (False, True)
    assert served(mailbox, {"a": 9.0}) == ["a"]


def test_what_waits_is_counted_in_commands_and_bytes() -> None:
    mailbox = by_name("aab")
    assert (mailbox.commands, mailbox.bytes) == (3, 15)
    mailbox.take("a")
    assert (mailbox.commands, mailbox.bytes) == (2, 10)
    mailbox.take("a")
    mailbox.take("b")
    assert (mailbox.commands, mailbox.bytes, mailbox.runnable) == (0, 0, False)
