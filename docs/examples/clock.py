"""The smallest tool: the current time."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tools.own import tool


@tool(effect="reads", concurrency_safe=True, timeout_s=5, mistakes=[ZoneInfoNotFoundError, ValueError])
def current_time(zone: str = "UTC") -> str:
    """Tell the current date and time.

    Args:
        zone: Name of a time zone, such as Europe/Berlin.
    """
    return datetime.now(UTC).astimezone(ZoneInfo(zone)).isoformat(timespec="seconds")
