"""The budget of one result: run → spill → **budget** → outcome.

A text above the order's bound is cut to its head and tail here, at the worker, so that it never travels whole; a
text above 8 KB is kept on the shared volume, so that a later cut by the step's budget can name a path that exists.
"""

from tools.base import ToolResult
from tools.cutting import cut_text
from worker.contract.orders import CutNote
from worker.spill import SpillFile

SPILL_FROM_BYTES = 8_192


def fit(result: ToolResult, spill: SpillFile, bound_bytes: int) -> tuple[ToolResult, CutNote | None]:
    """Return the result with its text within the bound, and what was left out if it was cut.

    Raises:
        OSError: the volume did not take the text.
    """
    raw = result.text.encode()
    if len(raw) > min(SPILL_FROM_BYTES, bound_bytes) and not spill.is_written:
        spill.write(raw)
    if len(raw) <= bound_bytes:
        return result, None
    hint = f"; all of it: {spill.box_path}" if spill.is_written else ""
    cut = cut_text(result.text, bound_bytes, hint=hint)
    note = CutNote(total_bytes=cut.total_bytes, shown_bytes=cut.shown_bytes, total_lines=cut.total_lines)
    return result.with_text(cut.text), note
