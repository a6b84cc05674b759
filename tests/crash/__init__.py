"""Whole servers with real processes, real signals and real disks that fail."""
