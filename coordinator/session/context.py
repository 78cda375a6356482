"""The window of the model: history → **context** (token_count, compaction) → asking.

Before each request the list is looked at; where it fills more than a share of the window it is compacted, and also
where an endpoint says that it is too long, from which an unknown window is learned. What was recorded stays: an event
tells what the list became.
"""

import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.errors import ContextTooLong
from coordinator.session import compaction
from coordinator.session.compaction import Keep, Message
from coordinator.session.events import EventSink
from coordinator.session.history import History
from coordinator.session.step_events import ContextCompacted
from coordinator.session.token_count import BYTES_PER_TOKEN, TokenCounter
from tools.cutting import cut_text

SHARE = 0.8
"""The share of the window that a request may fill; the rest is the reply's."""
AIM = 0.5
"""The share that a compaction leaves filled, so that the next one is not due at once."""
LEARNED_SHARE = 0.9
"""What is taken for the window when the endpoint says that a request is too long, but not by how much."""

Schemas = Sequence[Mapping[str, Any]]
Summarise = Callable[[list[dict[str, Any]]], Awaitable[str | None]]
"""Asks the model for a summary of a list that ends with that wish; None where it gives none."""


def keeper(spill_dir: Path, box_dir: str = "/spill") -> Keep:
    """Return what keeps texts in a session's spill directory, which its box shows the model.

    Files are named by their content: the same text is kept once.
    """

    def keep(text: str) -> str | None:
        content = text.encode("utf-8", "replace")
        name = f"kept-{hashlib.sha256(content).hexdigest()[:20]}.txt"
        part = spill_dir / f"{name}.part"
        try:
            if not (spill_dir / name).exists():
                part.write_bytes(content)
                part.chmod(0o644)
                part.rename(spill_dir / name)
        except OSError:
            # The directory may be a node's own, or the volume full; the stub says that the text is gone.
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            return None
        return f"{box_dir}/{name}"

    return keep


def keep_nothing(text: str) -> None:
    """Return that a text was not kept."""


@dataclass
class Context:
    """The window of one conversation's model, and how full it is."""

    window_tokens: int | None = None
    """None until it is known."""
    keep: Keep = keep_nothing
    counter: TokenCounter = field(default_factory=TokenCounter)
    share: float = SHARE
    aim: float = AIM

    def tokens(self, history: History, tools: Schemas) -> int:
        """Return the size of the next request."""
        return self.counter.of(history.messages, tools)

    def is_tight(self, history: History, tools: Schemas) -> bool:
        """Whether the next request fills more of the window than it may."""
        return self.window_tokens is not None and self.tokens(history, tools) > self.share * self.window_tokens

    def learn(self, error: ContextTooLong, history: History, tools: Schemas) -> None:
        """Learn from an endpoint that took a request for too long."""
        if error.limit_tokens is not None:
            self.counter.was_above(error.limit_tokens, history.messages, tools)
            self.window_tokens = min(error.limit_tokens, self.window_tokens or error.limit_tokens)
        else:
            known = int(self.tokens(history, tools) * LEARNED_SHARE)
            self.window_tokens = min(known, self.window_tokens or known)

    async def compact(self, history: History, tools: Schemas, step: int, summarise: Summarise, emit: EventSink) -> bool:
        """Make the list as short as it should be; whether it became shorter at all."""
        assert self.window_tokens is not None
        before = self.tokens(history, tools)
        aimed = int(self.window_tokens * self.aim)
        stubs = compaction.shrunk(history.messages, before - aimed, self.counter.of_message, self.keep)
        done = ContextCompacted(
            step=step, tokens_before=before, tokens_after=before, counted_by=self.counter.source, shortened=stubs
        )
        if before - self._saved(history.messages, done) > aimed:
            done = await self._summarised(history, done, self.counter.of_tools(tools), summarise)
        self._make(history, done, emit)
        now = self.tokens(history, tools)
        excess = now - int(self.window_tokens * self.share)
        if excess > 0:
            cuts = compaction.cut_to_fit(history.messages, excess, self.counter.of_message, self.keep)
            self._make(history, done.model_copy(update={**_NOTHING, "tokens_before": now, "shortened": cuts}), emit)
        return self.tokens(history, tools) < before

    async def _summarised(
        self, history: History, done: ContextCompacted, fixed: int, summarise: Summarise
    ) -> ContextCompacted:
        """Return the compaction with older steps summarised as well, if there are any.

        Args:
            history: The list.
            done: What was made of it so far.
            fixed: Tokens of what comes with every request.
            summarise: Asks the model.
        """
        assert self.window_tokens is not None
        size, own = self.counter.of_message, frozenset(history.own_words)
        messages = compaction.apply(history.messages, done)
        begin = compaction.first_kept(messages)
        # The user's words stay in any case: what is left of the window is for summary and steps.
        words = compaction.users_words(messages[begin:], history.summarised, own)
        fixed += sum(map(size, messages[:begin])) + self.counter.of_text(compaction.note(words, ""))
        most, aimed = int(self.window_tokens * self.share) - fixed, int(self.window_tokens * self.aim) - fixed
        for_summary = min(int(max(aimed, 0) * compaction.ROOM_FOR_SUMMARY), most)
        for_steps = min(int(max(aimed, 0) * compaction.ROOM_FOR_STEPS), most - for_summary)
        part = compaction.summarised_part(messages, for_steps, size)
        if not part:
            return done
        gone = messages[part.start : part.stop]
        text = await self._ask(messages[: part.stop], summarise)
        most_bytes = max(for_summary * BYTES_PER_TOKEN, compaction.LEAST_SUMMARY_BYTES)
        return done.model_copy(
            update={
                "shortened": tuple(one for one in done.shortened if one.position not in part),
                "removed": len(part),
                "requests": compaction.users_words(gone, history.summarised, own),
                "summary": cut_text(text, most_bytes).text if text else compaction.calls_made(gone, most_bytes),
                "is_by_model": bool(text),
            }
        )

    async def _ask(self, messages: list[dict[str, Any]], summarise: Summarise) -> str | None:
        """Return the model's summary; None where the wish for it would itself be too long."""
        asked = [*messages, {"role": "user", "content": compaction.SUMMARISE}]
        assert self.window_tokens is not None
        if sum(self.counter.of_message(message) for message in asked) > self.share * self.window_tokens:
            return None
        return await summarise(asked)

    def _make(self, history: History, done: ContextCompacted, emit: EventSink) -> None:
        """Let the list become what the compaction makes of it, and tell it first."""
        if not done.shortened and not done.removed:
            return
        after = max(done.tokens_before - self._saved(history.messages, done), 0)
        emit(done.model_copy(update={"tokens_after": after}))
        history.compact(done)
        self.counter.forget()

    def _saved(self, messages: Sequence[Message], done: ContextCompacted) -> int:
        """Return by how many tokens a compaction makes the list shorter."""
        size = self.counter.of_message
        made = compaction.apply(messages, done)
        return sum(size(message) for message in messages) - sum(size(message) for message in made)


_NOTHING: Mapping[str, Any] = {"removed": 0, "requests": (), "summary": "", "is_by_model": False}
