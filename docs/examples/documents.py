"""Search documents of the workspace, inside the session's box: the best files first, each with its best lines."""

import re
from collections import Counter
from typing import Annotated

from pydantic import Field

from tools.base import ErrorCode, ToolFailure
from tools.context import ToolContext
from tools.own import tool

KINDS = ("*.md", "*.rst", "*.txt")
LINES_EACH = 3


@tool(runs_on="box", effect="reads", concurrency_safe=True, timeout_s=30)
def search_documents(
    query: Annotated[str, Field(min_length=1)],
    context: ToolContext,
    directory: str = ".",
    limit: Annotated[int, Field(ge=1, le=20)] = 5,
) -> str:
    """Search the project's documents (Markdown, reStructuredText, text) for words.

    Args:
        query: Words to look for; files that hold more of them, and more often, come first.
        directory: Where to look.
        limit: How many files to show at most.
    """
    words = sorted({word.lower() for word in re.findall(r"\w+", query)})
    if not words:
        raise ToolFailure(ErrorCode.INVALID_PARAM, "The query holds no word.")
    patterns = [option for word in words for option in ("-e", word)]
    kinds = [f"--include={kind}" for kind in KINDS]
    # Words of an argument list, not text for a shell: nothing in the query can become a command.
    command = ["grep", "-rniIF", *kinds, *patterns, "--", directory]
    found = context.box.run(command, timeout_s=20)
    if found.exit_code not in (0, 1):
        raise ToolFailure(ErrorCode.EXECUTION_ERROR, f"The documents cannot be searched: {found.stderr[:300]}")
    return _ranked(found.stdout, words, limit) or f"No document below {directory} holds any of: {', '.join(words)}."


def _ranked(output: str, words: list[str], limit: int) -> str:
    counts: dict[str, Counter[str]] = {}
    lines: dict[str, list[tuple[int, str]]] = {}
    for row in output.splitlines():
        path, number, text = row.split(":", 2) if row.count(":") >= 2 else (row, "", "")
        hits = Counter({word: text.lower().count(word) for word in words if word in text.lower()})
        counts.setdefault(path, Counter()).update(hits)
        lines.setdefault(path, []).append((-len(hits), f"  {number}: {text.strip()[:200]}"))
    best = sorted(counts, key=lambda path: (-len(counts[path]), -counts[path].total(), path))[:limit]
    return "\n".join(
        "\n".join([path, *(text for _, text in sorted(lines[path], key=lambda line: line[0])[:LINES_EACH])])
        for path in best
    )
