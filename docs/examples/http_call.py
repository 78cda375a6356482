"""An HTTP call with a secret: the node makes it, and the box, which has no network, never sees the key."""

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Annotated

from pydantic import Field

from tools.base import ErrorCode, ToolFailure
from tools.context import ToolContext
from tools.own import tool

MAX_BYTES = 100_000


@tool(effect="reads", concurrency_safe=True, timeout_s=20, secrets=["TICKETS_URL", "TICKETS_TOKEN"])
def find_tickets(words: Annotated[str, Field(min_length=1)], context: ToolContext) -> str:
    """Search the issue tracker for tickets.

    Args:
        words: What to look for.
    """
    # The address is the operator's, not the model's: a model that may name it could send the key anywhere.
    query = urllib.parse.urlencode({"q": words, "user": context.principal})
    request = urllib.request.Request(
        f"{context.secrets['TICKETS_URL']}/search?{query}",
        headers={"Authorization": f"Bearer {context.secrets['TICKETS_TOKEN']}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=15) as response:
            body = response.read(MAX_BYTES)
    except (urllib.error.URLError, TimeoutError) as exc:
        raise ToolFailure(ErrorCode.EXECUTION_ERROR, f"The issue tracker does not answer: {exc}") from exc
    found = json.loads(body)
    return "\n".join(f"{ticket['id']}: {ticket['title']}" for ticket in found) or "No ticket matches."
