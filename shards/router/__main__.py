"""The program of the router-worker process."""

import trio

from shards.router import run
from topics.child import boot

trio.run(run, boot())
