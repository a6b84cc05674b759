"""Looking into a data directory: `topics inspect` shows it, `topics verify` checks it. Nothing is written."""
