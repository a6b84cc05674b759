"""Short days in the life of a shard. Each touches one part of the log's promises."""

from collections.abc import Callable

from tests.simulation.log_driver import Driver

Day = Callable[[Driver], None]


def classes(driver: Driver) -> None:
    """Writes of all four classes, alone, in batches and with keys, some of them in one group."""
    for name in ("fsync", "disk", "memory", "ephemeral"):
        driver.put(name, durability=name)
    driver.settle()
    for turn in range(2):
        for name in ("fsync", "disk", "memory", "ephemeral"):
            driver.write(name, 1 + turn * 3, key=f"{name}-{turn}", tag=f"t{turn}")
        driver.commit()
        driver.write("disk", size=300)
        driver.commit()
        driver.finish_sync()
        driver.write("fsync", 2)
        driver.commit()
        driver.sync_done()
    driver.settle()
    driver.write("fsync", key="fsync-0")  # a duplicate
    driver.write("made-by-write", config={"durability": "fsync"})
    driver.settle()


def rotation(driver: Driver) -> None:
    """Files fill up and follow each other while syncs are under way."""
    driver.put("f", durability="fsync")
    driver.put("d")
    driver.settle()
    for turn in range(3):
        driver.write("f", size=100)
        driver.commit()
        driver.finish_sync()
        driver.write("f", size=900)
        driver.write("d", 2, size=200)
        driver.commit()
        driver.write("f", size=1500)
        driver.commit()
        driver.sync_done()
        if turn == 1:
            driver.settle()
    driver.finish_sync()
    driver.write("d", size=2500)
    driver.commit()
    driver.settle()
    # The next file is made with this sync, and is taken while another one is under way.
    driver.write("f", size=1200)
    driver.commit()
    driver.settle()
    driver.write("f", size=10)
    driver.commit()
    driver.finish_sync()
    driver.write("f", size=10)
    driver.commit()
    driver.write("f", size=6000)
    driver.commit()
    driver.sync_done()
    driver.settle()


def deletes_and_config(driver: Driver) -> None:
    """Deletes by seq and by tag, config changes, topics that come, go and come again."""
    driver.write("f", 4, tag="red", config={"durability": "fsync"})
    driver.write("d", 4, tag="red")
    driver.settle()
    driver.write("f", 2, tag="blue")
    driver.write("d", 2, tag="blue")
    driver.commit()
    driver.delete("f", before_seq=3)
    driver.delete("d", match="blue")
    driver.commit()
    driver.settle()
    driver.delete("f", match=["tag", "Glob", "b*"], before_seq=6)
    driver.put("d", priority=7)
    driver.commit()
    driver.put("d", priority=8)
    driver.commit()
    driver.settle()
    driver.drop("d")
    driver.commit()
    driver.settle()
    driver.write("d", 2)
    driver.commit()
    driver.settle()
    driver.delete("d", before_seq=10)
    driver.drop("f")
    driver.settle()


def caps_and_time(driver: Driver) -> None:
    """Caps evict, time expires, floors are logged."""
    driver.put("capped", durability="fsync", cap_records=3)
    driver.put("small", cap_bytes=150)
    driver.put("brief", durability="fsync", ttl_ms=2000)
    driver.settle()
    for turn in range(3):
        driver.write("capped", 2)
        driver.write("small", 2)
        driver.write("brief", 2)
        driver.commit()
        driver.settle()
        driver.tick(1100)
        if turn == 1:
            driver.delete("capped", before_seq=3)
            driver.commit()
    driver.put("capped", cap_records=1)
    driver.commit()
    driver.settle()
    driver.tick(3000)
    driver.settle()


def class_changes(driver: Driver) -> None:
    """A topic's class changes back and forth; each record keeps the promise it was written under."""
    driver.write("c", 2)
    driver.settle()
    for durability in ("ephemeral", "disk", "fsync", "ephemeral", "fsync"):
        driver.put("c", durability=durability)
        driver.commit()
        driver.write("c", 2)
        driver.commit()
        driver.settle()
        driver.write("c")
        driver.commit()
    driver.settle()
    driver.put("e", durability="ephemeral", cap_records=2)
    driver.settle()
    driver.write("e", 3)
    driver.settle()
    driver.put("e", durability="disk")
    driver.commit()
    driver.write("e", 1)
    driver.settle()


def idle_topics(driver: Driver) -> None:
    """Topics become clean when nobody writes, and dirty again."""
    driver.write("d", 2)
    driver.write("e", 2, config={"durability": "ephemeral"})
    driver.settle()
    for _ in range(2):
        driver.tick(1500)
        driver.commit()
        driver.write("d")
        driver.write("e")
        driver.commit()
        driver.finish_sync()
        driver.tick(1500)
        driver.sync_done()
        driver.settle()
    driver.tick(60)
    driver.settle()


def sessions(driver: Driver) -> None:
    """Sessions that are killed, closed and killed again, with unsynced tails between them."""
    driver.put("f", durability="fsync")
    driver.put("e", durability="ephemeral")
    driver.write("d", 2, key="one")
    driver.settle()
    for turn in range(3):
        driver.write("f", 1, key=f"f{turn}")
        driver.write("e", 2)
        driver.commit()
        driver.settle()
        driver.write("d", 2, size=200)
        driver.commit()
        driver.write("f")
        driver.commit()
        if turn == 1:
            driver.close()
        driver.reopen()
        driver.write("d", 1, key=f"d{turn}")
        driver.commit()
        driver.settle()
    driver.close()


def checkpoints(driver: Driver) -> None:
    """Tails are sealed and the log is shortened, three times, with all classes and with work in between."""
    for name in ("fsync", "disk", "ephemeral"):
        driver.put(name, durability=name)
    driver.settle()
    for turn in range(3):
        for name in ("fsync", "disk", "ephemeral"):
            driver.write(name, 2, key=f"{name}-{turn}", tag=f"t{turn}", size=100)
        driver.commit()
        driver.settle()
        driver.begin_noting()
        driver.write("fsync", 1, size=400)
        driver.write(f"new-{turn}", 1)
        driver.commit()
        driver.go_on()
        driver.settle()
        driver.finish_checkpoint()
        driver.write("disk", 1)
        driver.commit()
    driver.settle()
    driver.reopen()
    driver.write("disk", 1)
    driver.settle()


def sealed_deletes(driver: Driver) -> None:
    """Records are deleted before, while and after they are sealed; topics are dropped and come again."""
    driver.write("f", 6, tag="red", config={"durability": "fsync"})
    driver.write("d", 6, tag="red")
    for tag in ("first", "middle", "last"):
        driver.write("k", 1, tag=tag, config={"durability": "fsync"})
    driver.settle()
    driver.delete("f", before_seq=3)
    driver.settle()
    driver.checkpoint()
    driver.write("f", 3, tag="blue")
    driver.delete("k", match="middle")
    driver.settle()
    driver.delete("f", match="blue", before_seq=8)
    driver.delete("d", before_seq=4)
    driver.commit()
    driver.settle()
    driver.begin_noting()
    driver.delete("f", match="red", before_seq=6)
    driver.drop("d")
    driver.commit()
    driver.settle()
    driver.write("d", 2)
    driver.settle()
    driver.finish_checkpoint()
    driver.delete("f", match="red")
    driver.settle()
    driver.checkpoint()
    driver.reopen()
    driver.write("f", 1)
    driver.settle()
    driver.checkpoint()


def sealed_caps(driver: Driver) -> None:
    """Caps and time take sealed records, in the middle of a page and whole pages; classes change."""
    driver.put("capped", durability="fsync", cap_records=5)
    driver.put("brief", durability="fsync", ttl_ms=2000)
    driver.put("c", durability="ephemeral")
    driver.settle()
    for turn in range(3):
        driver.write("capped", 4)
        driver.write("brief", 3)
        driver.write("c", 2)
        driver.commit()
        driver.settle()
        driver.checkpoint()
        driver.tick(900)
        driver.put("c", durability=("disk", "ephemeral", "fsync")[turn])
        driver.write("c", 1)
        driver.settle()
    driver.put("capped", cap_records=2)
    driver.settle()
    driver.checkpoint()
    driver.reopen()
    driver.tick(3000)
    driver.settle()


DAYS: dict[str, Day] = {
    day.__name__: day
    for day in (
        classes,
        rotation,
        deletes_and_config,
        caps_and_time,
        class_changes,
        idle_topics,
        sessions,
        checkpoints,
        sealed_deletes,
        sealed_caps,
    )
}
