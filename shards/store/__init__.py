"""Sealed records: closed chunks of topics as pages that no longer change."""
