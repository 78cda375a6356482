"""Sessions as spans: events → **tracing** (session → step → model request, call) → OTLP. Imported only where wanted.

Source: OpenTelemetry's semantic conventions for generative AI, spans of models, agents and tools. What models and tools
say is left out unless `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` is true.
"""

import json

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

from coordinator.service.entries import Entry
from coordinator.session.call_events import CallFinished, CallStarted
from coordinator.session.events import ChildEvent, Event, EventSink
from coordinator.session.session_events import (
    ChildEnded,
    ChildStarted,
    SessionEnded,
    SessionResumed,
    SessionStarted,
    TurnEnded,
)
from coordinator.session.step_events import ModelReplied, RequestFailed, StepStarted
from worker.contract.spans import Spans
from worker.contract.traces import call_span_id, trace_id

PROVIDER = "openai"
"""The protocol that is spoken, whoever serves it."""


class SessionSpans:
    """Gives each session a sink that writes its spans.

    Args:
        shows_content: Whether they may hold what models and tools say.
    """

    def __init__(self, *, shows_content: bool) -> None:
        self._spans = Spans("sandhog-coordinator")
        self._shows_content = shows_content

    def watch(self, entry: Entry) -> EventSink:
        """Return the sink of a session that begins or goes on here."""
        return _Conversation(self._spans, entry.session_id, None, shows_content=self._shows_content)

    def close(self) -> None:
        """Send what is left; blocks for as long as the exporter's time allows."""
        self._spans.close()


class _Conversation:
    """The spans of one conversation: a session's, or a sub-agent's below the call that began it."""

    def __init__(self, spans: Spans, session: str, above: Span | None, *, shows_content: bool) -> None:
        self._spans = spans
        self._session = session
        self._above = above
        self._shows_content = shows_content
        self._model = ""
        self._whole: Span | None = None
        self._step: Span | None = None
        self._chat: Span | None = None
        self._calls: dict[tuple[int, int], Span] = {}
        self._children: dict[str, _Conversation] = {}

    def __call__(self, event: Event) -> None:
        """Take in what happened just now."""
        match event:
            case SessionStarted() | SessionResumed():
                self._model = event.model or self._model
                self._begin()
            case StepStarted():
                self._begin_step(event.step)
            case RequestFailed():
                self._end_chat(error=str(event.status or event.code or "failed"))
                self._begin_chat()
            case ModelReplied():
                self._reply(event)
            case CallStarted():
                self._begin_call(event.step, event.index, event.tool, event.call_id)
            case CallFinished():
                self._end_call(event)
            case ChildStarted() | ChildEvent() | ChildEnded():
                self._child(event)
            case TurnEnded():
                self._end_step()
            case SessionEnded():
                self.end(event.status)
            case _:
                pass

    def end(self, status: str) -> None:
        """End everything that is open."""
        self._end_step()
        if self._whole is not None:
            self._whole.set_attribute("sandhog.session.status", status)
            if status == "failed":
                self._whole.set_status(Status(StatusCode.ERROR))
            self._whole.end()
            self._whole = None

    def _begin(self) -> Span:
        if self._whole is None:
            self._spans.ids.trace_id = None if self._above is not None else trace_id(self._session)
            self._whole = self._span("invoke_agent sandhog", self._above, "invoke_agent")
            self._spans.ids.trace_id = None
            self._whole.set_attributes({"gen_ai.agent.name": "sandhog", "gen_ai.conversation.id": self._session})
            if self._model:
                self._whole.set_attribute("gen_ai.request.model", self._model)
        return self._whole

    def _begin_step(self, step: int) -> None:
        self._end_step()
        self._step = self._span(f"step {step}", self._begin())
        self._step.set_attribute("sandhog.step", step)
        self._begin_chat()

    def _begin_chat(self) -> None:
        if self._step is not None:
            self._chat = self._span(f"chat {self._model}".rstrip(), self._step, "chat", SpanKind.CLIENT)
            self._chat.set_attribute("gen_ai.request.model", self._model)

    def _reply(self, event: ModelReplied) -> None:
        if self._chat is None:
            return
        self._chat.set_attribute("gen_ai.response.finish_reasons", [event.finish_reason])
        if event.usage is not None:
            self._chat.set_attributes(
                {
                    "gen_ai.usage.input_tokens": event.usage.prompt_tokens,
                    "gen_ai.usage.output_tokens": event.usage.completion_tokens,
                    "gen_ai.usage.cache_read.input_tokens": event.usage.cached_tokens,
                }
            )
        if self._shows_content:
            said = {"role": "assistant", "parts": [{"type": "text", "content": event.text}]}
            self._chat.set_attribute("gen_ai.output.messages", json.dumps([said]))
        self._end_chat()

    def _begin_call(self, step: int, index: int, tool: str, call_id: str) -> Span:
        self._end_chat()
        self._spans.ids.span_id = call_span_id(self._session, step, index)
        span = self._span(f"execute_tool {tool}", self._step or self._begin(), "execute_tool")
        span.set_attributes({"gen_ai.tool.name": tool, "gen_ai.tool.call.id": call_id, "gen_ai.tool.type": "function"})
        self._calls[(step, index)] = span
        return span

    def _end_call(self, event: CallFinished) -> None:
        span = self._calls.pop((event.step, event.index), None)
        if span is None:
            # It was refused before it began.
            span = self._begin_call(event.step, event.index, event.tool, event.call_id)
            del self._calls[(event.step, event.index)]
        if event.error_code is not None:
            span.set_attribute("error.type", event.error_code)
            span.set_status(Status(StatusCode.ERROR))
        if self._shows_content:
            span.set_attribute("gen_ai.tool.call.result", event.answer)
        span.end()

    def _child(self, event: ChildStarted | ChildEvent | ChildEnded) -> None:
        child = self._children.get(event.child)
        if child is None:
            above = self._calls.get((event.step, event.index)) or self._begin()
            child = _Conversation(self._spans, event.child, above, shows_content=self._shows_content)
            child._model = self._model
            self._children[event.child] = child
        if isinstance(event, ChildEvent):
            child(event.event)
        elif isinstance(event, ChildEnded):
            child.end(event.status)
            del self._children[event.child]

    def _end_chat(self, error: str | None = None) -> None:
        if self._chat is not None:
            if error is not None:
                self._chat.set_attribute("error.type", error)
                self._chat.set_status(Status(StatusCode.ERROR))
            self._chat.end()
            self._chat = None

    def _end_step(self) -> None:
        for span in self._calls.values():
            span.end()
        self._calls.clear()
        self._end_chat()
        if self._step is not None:
            self._step.end()
            self._step = None

    def _span(
        self, name: str, above: Span | None, operation: str | None = None, kind: SpanKind = SpanKind.INTERNAL
    ) -> Span:
        context = None if above is None else set_span_in_context(above)
        span = self._spans.tracer.start_span(name, context, kind=kind)
        if operation is not None:
            span.set_attributes({"gen_ai.operation.name": operation, "gen_ai.provider.name": PROVIDER})
        return span
