"""What is left of a session's private copy when it has ended."""

from typing import Literal

Keep = Literal["never", "unfinished", "always"]
"""When the copy stays below the state directory."""
