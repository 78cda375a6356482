"""The system prompt: pure functions of what the session was given."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PromptFacts:
    """What the model must know of its place."""

    policy: str
    is_copy: bool
    max_steps: int
    has_rules: bool = False
    """The user has a policy of their own."""
    is_read_only: bool = False
    allow_hosts: tuple[str, ...] = ()
    added: str = ""
    """The user's own text; it stands at the end."""


def _rules(facts: PromptFacts) -> str:
    if facts.is_read_only:
        return "You may only read: commands and tools that could change anything are denied."
    if facts.policy == "guarded":
        words = "Commands beyond plain reading, and all edits, are asked of a human first and may be denied"
    elif facts.has_rules:
        words = "The user's policy allows some commands and denies others, or asks a human first"
    else:
        return "You may run any command; the sandbox is the boundary."
    return f"{words}; do not try to get around a denial."


def system_prompt(facts: PromptFacts) -> str:
    """Return the session's system message."""
    workspace = (
        "a private copy of the user's directory; your changes become a patch"
        if facts.is_copy
        else "the user's own directory"
    )
    rules = _rules(facts)
    network = (
        f"Through the proxy that the environment names commands reach only {', '.join(facts.allow_hosts)}."
        if facts.allow_hosts
        else "There is no network."
    )
    return "\n".join(
        [
            "You are a coding agent. You work by calling tools that run in a sealed Linux sandbox.",
            f"- /workspace is {workspace}. Bash starts there and keeps its working directory between calls.",
            f"- {network} Commands have no standard input and no terminal.",
            f"- {rules}",
            "- Calls of Read, Grep and Glob in one reply run in parallel; ask for several at once where you can.",
            "- A long result shows its head and tail and names a file below /spill that holds all of it; "
            "Read and Grep work on that path.",
            "- Each answer is a JSON object with status success, partial or error; an error says what to do.",
            f"- You have at most {facts.max_steps} replies. When you are done, answer without calling a tool.",
            *(["", facts.added.strip()] if facts.added.strip() else []),
        ]
    )
