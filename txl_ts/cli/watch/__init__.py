"""``txl-ts watch``: lines of readings in, JSON lines of scores, statuses and alerts out."""
