"""`topics serve` with children that only report what happens to them."""

import os
import sys

from topics import logs, settings
from topics.supervisor import Programs, serve

FAKE = "tests.fakes.fake_child"


def main() -> int:
    logs.configure("supervisor")
    chosen, _ = settings.load(os.environ)
    return serve(chosen, os.environ, Programs(shard=FAKE, router=FAKE, gateway=FAKE))


if __name__ == "__main__":
    sys.exit(main())
