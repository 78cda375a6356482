"""The budget of one result: run → spill → **budget** → outcome.

A text above the order's bound is cut to its head and tail here, at the worker, so that it never travels whole; a
text above 8 KB is kept on the shared volume, so that a later cut by the step's budget can name a path that exists.
"""

from tools.base import ToolResult
from tools.cutting import cut_text
from tools.spilling import whereabouts
from worker.contract.orders import CutNote
from worker.spill import SpillFile

SPILL_FROM_BYTES = 8_192


def fit(result: ToolResult, spill: SpillFile, bound_bytes: int) -> tuple[ToolResult, CutNote | None]:
    """Return the result with its text within the bound, and what was left out if it was cut.

    Where the spill does not hold all of the text, `data` says why (`spill_flaw`), and the text where it was cut.
    """
    raw = result.text.encode()
    if len(raw) > min(SPILL_FROM_BYTES, bound_bytes) and not spill.is_written:
        spill.write(raw)
    if spill.flaw is not None:
        result = result.model_copy(update={"data": {**result.data, "spill_flaw": spill.flaw.value}})
    if len(raw) <= bound_bytes:
        return result, None
    where = whereabouts(spill)
    cut = cut_text(result.text, bound_bytes, hint=f"; {where}" if where else "")
    note = CutNote(total_bytes=cut.total_bytes, shown_bytes=cut.shown_bytes, total_lines=cut.total_lines)
    return result.with_text(cut.text), note
