"""How a reply ended, in the four words that the loop knows: deltas → **finish_reasons** → reply."""

BROKEN_OFF = frozenset({"error", "abort", "aborted", "cancelled", "network_error", "insufficient_system_resource"})
"""Words of endpoints for a reply that is not whole; it is asked for again."""

_WORDS = {
    "stop": ("eos", "eos_token", "end_turn", "stop_sequence", "complete", "completed", "done", "finished", "end"),
    "tool_calls": ("tool_call", "tool_use", "function_call"),
    "length": (
        "max_tokens",
        "max_output_tokens",
        "max_completion_tokens",
        "max_length",
        "model_length",
        "token_limit",
        "truncated",
        "model_context_window_exceeded",
    ),
    "content_filter": (
        "content_filtered",
        "safety",
        "sensitive",
        "recitation",
        "blocklist",
        "prohibited_content",
        "spii",
        "guardrail_intervened",
    ),
}
_BRANCHES = {word: branch for branch, words in _WORDS.items() for word in (branch, *words)}


def branch_of(finish_reason: str | None, *, has_calls: bool) -> str:
    """The branch the loop takes: stop, tool_calls, length, content_filter; an unknown word as it is.

    Args:
        finish_reason: The endpoint's word; None where it had none, though the reply is whole.
        has_calls: Whether the reply has calls.
    """
    if finish_reason is None:
        return "tool_calls" if has_calls else "stop"
    return _BRANCHES.get(finish_reason.lower(), finish_reason)
