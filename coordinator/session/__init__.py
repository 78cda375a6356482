"""One agent session: its loop, its steps, its limits, its history and its transcript."""
