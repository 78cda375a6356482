"""Make a message list shorter, so that a strict endpoint still takes it: context → **compaction** → history.

Three ways, each only as far as the one before it was not enough: older results of tools become stubs that name the
file with all of their text; older steps become one message with the user's own words and a summary; results that the
model has not seen yet are cut. A call and its answer are never parted, and what a user wrote is never shortened.

Pure functions on lists of messages. Positions count from 0 in the list as it was before.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coordinator.endpoint.fragments import mend
from coordinator.session.event_fields import ShortenedAnswer
from coordinator.session.step_events import ContextCompacted
from tools.cutting import cut_text

Message = Mapping[str, Any]
Size = Callable[[Message], int]
"""Tokens of one message."""
Keep = Callable[[str], str | None]
"""Keeps a text where the model can read it, and returns its path there; None when that cannot be."""

STUB_FROM_BYTES = 600
"""An answer below this is not worth a stub."""
LEAST_SHOWN_BYTES = 400
"""No result that the model has not seen yet is cut below this."""
SPARED_STEPS = 3
"""Results of as many of the latest steps become stubs only when all older ones are not enough."""
ERROR_CHARS = 300
ROOM_FOR_SUMMARY = 0.25
"""The share of the room that a summary may take."""
ROOM_FOR_STEPS = 0.5
"""The share of the room in which the latest steps stay as they are when older ones are summarised."""
LEAST_SUMMARY_BYTES = 200

SUMMARISE = (
    "The conversation is about to outgrow its window. Sum up what came before for yourself: you will go on with this "
    "summary in place of it. Write what was decided and why, what was changed (each file, by path), what was found "
    "out, what failed, and what is left to do next, with all names, paths, numbers and commands that will be needed. "
    "The user's messages are kept word for word; do not repeat them. Answer with the summary alone."
)

_HEAD = "[To save room, the earlier part of this session was summarised.]"
_WORDS = "What the user said, word for word:"
_SUMMARY = "Summary of what was done:"


def first_kept(messages: Sequence[Message]) -> int:
    """Return the position behind the system messages."""
    return next((at for at, message in enumerate(messages) if message.get("role") != "system"), len(messages))


def last_step(messages: Sequence[Message]) -> int:
    """Return where the last reply of the model begins, its answers behind it; the list's length if there is none."""
    return _latest(messages, 1, len(messages))


def shrunk(messages: Sequence[Message], excess: int, size: Size, keep: Keep) -> tuple[ShortenedAnswer, ...]:
    """Return stubs for older results until the excess is gone: the largest first, of those the oldest.

    Those of the last step stay, and those of the latest ones as long as others are enough.

    Args:
        messages: The list.
        excess: Tokens that are too many.
        size: Tokens of a message.
        keep: Keeps a result's text.
    """
    spared = last_step(messages)
    older = [at for at in range(spared) if messages[at].get("role") == "tool" and _is_large(messages[at])]
    # Sizes in powers of two: a little larger is not a reason to leave what is much older.
    recent = _latest(messages, SPARED_STEPS, 0)
    older.sort(key=lambda at: (at >= recent, -len(str(messages[at]["content"])).bit_length(), at))
    stubs = []
    for at in older:
        if excess <= 0:
            break
        content = stub(str(messages[at]["content"]), keep)
        excess -= size(messages[at]) - size({**messages[at], "content": content})
        stubs.append(ShortenedAnswer(position=at, content=content))
    return tuple(sorted(stubs, key=lambda one: one.position))


def stub(answer: str, keep: Keep) -> str:
    """Return what stands for an answer whose text is kept elsewhere: its status, its error, and where the text is."""
    fields = _fields(answer)
    text = fields["text"] if isinstance(fields.get("text"), str) else answer
    path = keep(text)
    where = f"all of it: {path}" if path else "it was not kept; make the call again if you need it"
    size_bytes = len(text.encode("utf-8", "replace"))
    short = {"status": fields.get("status", "success"), "text": f"[{size_bytes} bytes left out to save room; {where}]"}
    error = fields.get("error")
    if isinstance(error, Mapping):
        short["error"] = {"code": error.get("code"), "message": str(error.get("message"))[:ERROR_CHARS]}
    return json.dumps(short, ensure_ascii=False, separators=(",", ":"))


def summarised_part(messages: Sequence[Message], room: int, size: Size) -> range:
    """Return the positions that a summary can take the place of; empty when there is no older step.

    What stays are as many of the latest steps as the room takes, at least the last one.
    """
    begin, cut = first_kept(messages), last_step(messages)
    left = room - sum(size(message) for message in messages[cut:])
    # A step is a reply with its answers; a message of the user's goes with what follows it.
    for at in range(cut - 1, begin - 1, -1):
        left -= size(messages[at])
        if left < 0:
            break
        if messages[at].get("role") != "tool":
            cut = at
    part = range(begin, cut)
    return part if any(messages[at].get("role") == "assistant" for at in part) else range(0)


def users_words(messages: Sequence[Message], earlier: ContextCompacted | None, own: frozenset[str]) -> tuple[str, ...]:
    """Return what the user said in messages that go, in order.

    Args:
        messages: Those that go.
        earlier: The compaction whose note is the first of them, if there was one.
        own: What this program said in the user's role; that is not kept.
    """
    said = [str(message["content"]) for message in messages if message.get("role") == "user"]
    kept = list(earlier.requests) if earlier is not None else []
    return (*kept, *(text for text in said[1 if earlier is not None else 0 :] if text not in own))


def note(requests: Sequence[str], summary: str) -> str:
    """Return the message that stands for the part that was summarised."""
    words = "\n\n".join(f"{number}. {text}" for number, text in enumerate(requests, 1))
    said = f"\n\n{_WORDS}\n\n{words}" if requests else ""
    return f"{_HEAD}{said}\n\n{_SUMMARY}\n\n{summary}"


def calls_made(messages: Sequence[Message], most_bytes: int) -> str:
    """Return a summary that needs no model: what was called, a line each, the middle left out if it is too long."""
    lines = []
    answers = {str(one.get("tool_call_id")): _fields(str(one["content"])) for one in messages if one["role"] == "tool"}
    for message in messages:
        if message.get("role") != "assistant":
            continue
        if message.get("content"):
            lines.append("You said: " + cut_text(str(message["content"]), 500).text)
        for call in message.get("tool_calls") or ():
            status = answers.get(str(call["id"]), {}).get("status", "?")
            lines.append(f"- {call['function']['name']} {cut_text(call['function']['arguments'], 200).text}: {status}")
    return cut_text("\n".join(lines) or "(nothing)", most_bytes).text


def cut_to_fit(messages: Sequence[Message], excess: int, size: Size, keep: Keep) -> tuple[ShortenedAnswer, ...]:
    """Return cuts of the results that the model has not seen yet, until the excess is gone or nothing is left to cut.

    All that are longer come down to one common size, so that the shortest stay whole.
    """
    fresh = [at for at in range(last_step(messages), len(messages)) if messages[at].get("role") == "tool"]
    bound = max((len(str(messages[at]["content"]).encode()) for at in fresh), default=0)
    cuts: dict[int, ShortenedAnswer] = {}
    while excess > 0 and bound > LEAST_SHOWN_BYTES:
        bound = max(bound // 2, LEAST_SHOWN_BYTES)
        for at in fresh:
            answer = str(messages[at]["content"])
            if len(answer.encode()) <= bound:
                continue
            content = _cut(answer, bound, keep)
            before = size({**messages[at], "content": cuts[at].content if at in cuts else answer})
            after = size({**messages[at], "content": content})
            if after < before:
                excess -= before - after
                cuts[at] = ShortenedAnswer(position=at, content=content)
    return tuple(cuts.values())


def apply(messages: Sequence[Message], done: ContextCompacted) -> list[dict[str, Any]]:
    """Return the list that a compaction made of another: the same one whenever the same event is applied to it."""
    made = [dict(message) for message in messages]
    for answer in done.shortened:
        if not (answer.position < len(made) and made[answer.position].get("role") == "tool"):
            # A list that was rebuilt from a transcript with lines that cannot be read.
            continue
        made[answer.position]["content"] = mend(answer.content)
    if done.removed:
        begin = first_kept(made)
        end = begin + done.removed
        while end < len(made) and made[end].get("role") == "tool":
            end += 1
        text = mend(note(done.requests, done.summary))
        made[begin:end] = [{"role": "user", "content": text}]
    return made


def _cut(answer: str, bound_bytes: int, keep: Keep) -> str:
    fields = _fields(answer)
    text = fields.get("text")
    if not isinstance(text, str):
        return cut_text(answer, bound_bytes).text
    path = keep(text)
    hint = f"; all of it: {path}" if path else ""
    if len(text.encode()) > bound_bytes // 2:
        fields["text"] = cut_text(text, bound_bytes // 2, hint=hint).text
    # What else is in the answer says the same for programs; it goes where it is as long as the text itself.
    whole = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return whole if len(whole.encode()) <= bound_bytes else stub(answer, keep)


def _latest(messages: Sequence[Message], steps: int, otherwise: int) -> int:
    replies = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
    return replies[-steps] if len(replies) >= steps else otherwise


def _is_large(message: Message) -> bool:
    return len(str(message.get("content"))) >= STUB_FROM_BYTES


def _fields(answer: str) -> dict[str, Any]:
    try:
        fields = json.loads(answer)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
