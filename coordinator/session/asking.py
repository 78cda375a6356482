"""Ask the model for a session: loop → **asking** (context, model) → reply, everything that it costs counted."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from coordinator.ending import first
from coordinator.endpoint.model import ModelClient, Retry
from coordinator.endpoint.parameters import DEFAULT_PARAMETERS, ModelParameters
from coordinator.endpoint.reply import ModelReply, Usage
from coordinator.errors import ContextTooLong, ModelError, ReplyBroken
from coordinator.session.context import Context
from coordinator.session.events import EventSink
from coordinator.session.history import History
from coordinator.session.session_events import Notice
from coordinator.session.spend import Spend
from coordinator.session.step_events import ModelReplied, RequestFailed, StepStarted, TextDelta, TokensSpent

Messages = list[dict[str, Any]]
Tools = list[dict[str, Any]]


@dataclass
class Asker:
    """Asks for one conversation's replies."""

    model: ModelClient
    history: History
    spend: Spend
    context: Context
    emit: EventSink
    sync: Callable[[], Awaitable[None]]
    """Makes everything emitted so far durable."""
    parameters: ModelParameters = DEFAULT_PARAMETERS
    """How the model is asked."""

    async def ask(self, tools: Tools, stop: asyncio.Event) -> ModelReply | None:
        """Return the model's next reply, asked for once more if it was empty; None when stopped.

        Raises:
            ModelError: there is none.
        """
        self.spend.steps += 1
        step = self.spend.steps
        self.emit(StepStarted(step=step))
        if self.context.is_tight(self.history, tools):
            await self._compact(tools, stop)
        await self.sync()
        reply: ModelReply | None = None
        for _ in range(2):
            reply = await self._fitting(tools, stop)
            if reply is None:
                return None
            self._replied(step, reply, tools)
            if reply.text or reply.calls or reply.refusal or reply.finish_reason == "content_filter":
                return reply
            self.emit(Notice(level="warning", text="The model's reply was empty; it is asked once more."))
        return reply

    def tell_failed(self, error: ModelError, next_try_s: float | None) -> None:
        """Keep what the endpoint said of a request that failed."""
        self.emit(
            RequestFailed(
                step=self.spend.steps,
                text=str(error),
                status=error.status,
                code=error.code,
                body=error.body,
                next_try_s=next_try_s,
            )
        )

    async def _fitting(self, tools: Tools, stop: asyncio.Event) -> ModelReply | None:
        """Ask; where the endpoint says that the messages are too long, compact them and ask once more."""
        try:
            return await self._once(self.history.messages, tools, stop, is_shown=True)
        except ContextTooLong as exc:
            self.tell_failed(exc, 0.0)
            self.context.learn(exc, self.history, tools)
            if not await self._compact(tools, stop):
                raise
            await self.sync()
        try:
            return await self._once(self.history.messages, tools, stop, is_shown=True)
        except ContextTooLong as exc:
            exc.args = (f"{exc} That is so although the messages were compacted as far as they can be.",)
            raise

    async def _compact(self, tools: Tools, stop: asyncio.Event) -> bool:
        async def summarise(messages: Messages) -> str | None:
            try:
                reply = await self._once(messages, [], stop, is_shown=False)
            except ModelError as exc:
                self.tell_failed(exc, None)
                return None
            if reply is None:
                return None
            usage = reply.usage or self._estimated(self._size(messages), reply)
            self._spent(usage, "summary")
            return reply.text.strip() or None

        return await self.context.compact(self.history, tools, self.spend.steps, summarise, self.emit)

    async def _once(
        self, messages: Messages, tools: Tools, stop: asyncio.Event, *, is_shown: bool
    ) -> ModelReply | None:
        """Return the reply to one request; tries that brought something before they failed are counted."""
        step, pieces = self.spend.steps, list[str]()

        def on_text(text: str) -> None:
            pieces.append(text)
            if is_shown:
                self.emit(TextDelta(step=step, text=text))

        def on_retry(retry: Retry) -> None:
            self.tell_failed(retry.error, retry.wait_s)
            if pieces or isinstance(retry.error, ReplyBroken):
                sent = self._size(messages) + self.context.counter.of_tools(tools)
                self._spent(self._estimated(sent, ModelReply("".join(pieces), (), "")), "retry")
            pieces.clear()

        asking = asyncio.create_task(
            self.model.ask(
                messages,
                tools,
                on_text,
                on_retry=on_retry,
                on_wait=self._waited,
                parameters=self.parameters,
                is_first=is_shown and step == 1,
            )
        )
        return await first(asking, stop)

    def _replied(self, step: int, reply: ModelReply, tools: Tools) -> None:
        usage = reply.usage
        if usage is None or not usage.total_tokens:
            usage = self._estimated(self.context.tokens(self.history, tools), reply)
        else:
            self.context.counter.measured(self.history.messages, tools, usage)
        self.spend.add(usage)
        self.emit(
            ModelReplied(
                step=step,
                text=reply.text,
                calls=reply.calls,
                finish_reason=reply.finish_reason,
                usage=usage,
                refusal=reply.refusal,
                raw=dict(reply.raw),
            )
        )

    def _spent(self, usage: Usage, on: Literal["retry", "summary"]) -> None:
        self.spend.add(usage)
        self.emit(TokensSpent(step=self.spend.steps, usage=usage, on=on))

    def _size(self, messages: Messages) -> int:
        return sum(self.context.counter.of_message(message) for message in messages)

    def _estimated(self, sent: int, reply: ModelReply) -> Usage:
        """Return what a request of so many tokens cost, as far as sizes tell."""
        words = reply.text + "".join(f"{call.name}{call.arguments}" for call in reply.calls)
        made = self.context.counter.of_text(words)
        return Usage(sent, made, sent + made, is_estimated=True)

    def _waited(self, seconds: float) -> None:
        self.emit(Notice(text=f"The request waited {seconds:.0f} s for a place at the endpoint."))
