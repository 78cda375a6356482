"""Many sessions from a file of tasks. Read: rows, tasks, requests, attempt, verdict, lines, run; then what it shows."""
