"""What every test needs, and nothing else: found cases are replayed, and slow machines are no failure."""

from hypothesis import settings

# The time limit is pytest's, per test; a single slow example says more about the machine.
settings.register_profile("topics", deadline=None, print_blob=True)
settings.load_profile("topics")
