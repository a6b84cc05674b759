"""Everything that proves the promises; see the folders."""
