"""Whom sessions act for where nobody has a name."""

LOCAL = "local"
"""Principal of sessions that a command line starts."""
