"""Looking into a data directory from outside: `topics inspect` shows it, `topics verify` checks it. Read-only."""
