"""The conversation as the endpoint gets it: reply, answers → **history** → model.

A strict endpoint takes a list only if every call of an assistant message has exactly one answer, right behind
it. `History` cannot build another kind; `validate` proves it, in tests and in the scripted endpoint.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from coordinator.endpoint.fragments import mend
from coordinator.endpoint.quirks import ECHOABLE
from coordinator.endpoint.reply import ModelReply, RawCall
from coordinator.errors import HistoryInvalid
from coordinator.session.compaction import apply, first_kept
from coordinator.session.step_events import ContextCompacted, ReplyTaken, UserMessage

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


Journal = Callable[[UserMessage | ReplyTaken], None]
"""Takes down what entered a history, so that the same one can be built again; answers have events of their own."""


class History:
    """The message list of one session; grows at its end only.

    Args:
        system: The system message; "" for none.
        journal: Is told of each message before it is added; None while nothing need be told.
        echoable: Fields that are kept beside a reply's text and calls, for the endpoint that wants them back.
    """

    def __init__(
        self, system: str = "", journal: Journal | None = None, *, echoable: Collection[str] = ECHOABLE
    ) -> None:
        self.journal = journal
        self._echoable = frozenset(echoable)
        self._messages: list[dict[str, Any]] = []
        self._open: tuple[str, ...] = ()
        self._replies = 0
        self.own_words: set[str] = set()
        """What this program said in the user's role."""
        self.summarised: ContextCompacted | None = None
        """The compaction whose note is the first message behind the system message; None while there is none."""
        if system:
            self._messages.append({"role": "system", "content": mend(system)})

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The list itself, to be sent but not changed."""
        return self._messages

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Ids of the last reply's calls while they have no answers."""
        return self._open

    @property
    def is_answered(self) -> bool:
        """Whether nothing in it waits for the model: its last message is the model's own, and asks for nothing."""
        return not self._open and bool(self._messages) and self._messages[-1].get("role") == "assistant"

    def add_user(self, text: str, by: Literal["user", "sandhog"] = "user") -> None:
        """A message in the user's role; `by` says whose words it has.

        Raises:
            HistoryInvalid: Calls are unanswered.
        """
        self._demand_answered("a user message")
        if self.journal is not None:
            self.journal(UserMessage(text=text, by=by))
        if by == "sandhog":
            self.own_words.add(mend(text))
        self._messages.append({"role": "user", "content": mend(text)})

    def add_reply(self, reply: ModelReply, ids: Sequence[str] | None = None) -> tuple[str, ...]:
        """The model's message; the ids its answers must carry, in the model's order.

        Args:
            reply: What the model said; its text is kept beside calls.
            ids: One id per call, where they were already settled. None: the endpoint's own, made up where missing.

        Raises:
            HistoryInvalid: Calls are unanswered, or the ids do not fit the calls.
        """
        self._demand_answered("a reply")
        self._replies += 1
        settled = tuple(ids) if ids is not None else settle_ids(reply.calls, self._replies)
        if len(settled) != len(reply.calls):
            raise HistoryInvalid(f"{len(settled)} ids for {len(reply.calls)} calls")
        if self.journal is not None:
            # A reply with calls is taken as it was said; one without may be a part of it.
            text = None if reply.calls else reply.text
            self.journal(ReplyTaken(call_ids=settled, text=text, has_calls=bool(reply.calls)))
        content = mend(reply.text or reply.refusal or "")
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if reply.calls:
            message["content"] = content or None
            message["tool_calls"] = [_echoed(call, call_id) for call, call_id in zip(reply.calls, settled, strict=True)]
        self._keep_beside(message, reply.raw_message)
        self._messages.append(message)
        self._open = settled
        return settled

    def _keep_beside(self, message: dict[str, Any], raw: Mapping[str, Any]) -> None:
        """Keeps what some endpoint wants back beside text and calls; the request leaves out what this one does not."""
        message.update({name: raw[name] for name in self._echoable if raw.get(name) is not None})
        for call, raw_call in zip(message.get("tool_calls", ()), raw.get("tool_calls") or (), strict=False):
            call.update({name: raw_call[name] for name in self._echoable if raw_call.get(name) is not None})

    def add_answers(self, answers: Sequence[str]) -> None:
        """The answers of the last reply's calls, one each, in the model's order.

        Raises:
            HistoryInvalid: Not as many answers as calls.
        """
        if len(answers) != len(self._open):
            raise HistoryInvalid(f"{len(answers)} answers for {len(self._open)} calls")
        for call_id, answer in zip(self._open, answers, strict=True):
            self._messages.append({"role": "tool", "tool_call_id": call_id, "content": mend(answer)})
        self._open = ()

    def compact(self, done: ContextCompacted) -> None:
        """Become what a compaction makes of the list.

        Raises:
            HistoryInvalid: Calls are unanswered.
        """
        self._demand_answered("a compaction")
        self._messages[:] = apply(self._messages, done)
        self.summarised = done if done.removed else self.summarised

    def set_system(self, system: str) -> None:
        """Put another system message in the place of the present one; "" for none."""
        begin = first_kept(self._messages)
        self._messages[:begin] = [{"role": "system", "content": mend(system)}] if system else []

    def _demand_answered(self, what: str) -> None:
        if self._open:
            raise HistoryInvalid(f"{what} while {len(self._open)} calls have no answer")


def settle_ids(calls: Sequence[RawCall], step: int) -> tuple[str, ...]:
    """The calls' ids: the endpoint's own, and for those without one an id made from step and index."""
    taken = {call.id for call in calls if call.id}
    ids = []
    for call in calls:
        call_id = call.id or f"call_{step}_{call.index}"
        while call.id is None and call_id in taken:
            call_id += "x"
        ids.append(call_id)
    return tuple(ids)


def validate(messages: Any, *, for_request: bool = False) -> None:
    """Proves that a strict endpoint takes the list.

    Args:
        messages: The list, in the endpoint's own shape.
        for_request: Whether it must also end with something for the model to answer.

    Raises:
        HistoryInvalid: Naming the message (from 0) and the fault.
    """
    if not isinstance(messages, list) or not messages:
        raise HistoryInvalid("messages must be a list that is not empty")
    open_ids: list[str] = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise HistoryInvalid(f"message {number} is not an object")
        if message.get("role") == "tool":
            _close(number, message, open_ids)
        elif open_ids:
            role = message.get("role")
            raise HistoryInvalid(f"message {number} is {role!r}, but these calls have no answer yet: {open_ids}")
        else:
            open_ids = _open(number, message, messages[:number])
    if open_ids:
        raise HistoryInvalid(f"the list ends, but these calls have no answer: {open_ids}")
    if for_request and messages[-1].get("role") not in ("user", "tool"):
        raise HistoryInvalid("the list ends with nothing for the model to answer")


def _open(number: int, message: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> list[str]:
    """Checks a message that is no answer; the ids that must be answered behind it."""
    match message.get("role"):
        case "assistant":
            return _assistant(number, message)
        case "system" | "developer" as role:
            if any(earlier.get("role") not in ("system", "developer") for earlier in before):
                raise HistoryInvalid(f"message {number}: a {role} message after the beginning")
            _content(number, message.get("content"))
        case "user":
            _content(number, message.get("content"))
        case role:
            raise HistoryInvalid(f"message {number} has the unknown role {role!r}")
    return []


def _close(number: int, message: Mapping[str, Any], open_ids: list[str]) -> None:
    call_id = message.get("tool_call_id")
    if not open_ids:
        raise HistoryInvalid(f"message {number} answers {call_id!r}, which no call right before it asked for")
    if call_id != open_ids[0]:
        raise HistoryInvalid(f"message {number} answers {call_id!r}, but the next open call is {open_ids[0]!r}")
    _content(number, message.get("content"), may_be_empty=True)
    open_ids.pop(0)


def _assistant(number: int, message: Mapping[str, Any]) -> list[str]:
    """The ids that must be answered."""
    calls = message.get("tool_calls")
    if calls is None:
        _content(number, message.get("content"), may_be_empty=True)
        return []
    if message.get("content") is not None:
        _content(number, message["content"], may_be_empty=True)
    if not isinstance(calls, list) or not calls:
        raise HistoryInvalid(f"message {number}: tool_calls must be a list that is not empty, or missing")
    ids = []
    for call in calls:
        if not isinstance(call, Mapping) or call.get("type") != "function":
            raise HistoryInvalid(f"message {number}: a call is not of type function")
        call_id, function = call.get("id"), call.get("function")
        if not isinstance(call_id, str) or not call_id:
            raise HistoryInvalid(f"message {number}: a call has no id")
        if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
            raise HistoryInvalid(f"message {number}: the arguments of {call_id!r} are not a string")
        if not isinstance(function.get("name"), str) or not _NAME.fullmatch(function["name"]):
            raise HistoryInvalid(f"message {number}: {call_id!r} has the bad name {function.get('name')!r}")
        _encodable(number, function["arguments"])
        ids.append(call_id)
    return ids


def _content(number: int, content: Any, *, may_be_empty: bool = False) -> None:
    if isinstance(content, str):
        _encodable(number, content)
    elif not isinstance(content, list) or not all(isinstance(part, Mapping) and "type" in part for part in content):
        raise HistoryInvalid(f"message {number}: content is neither a string nor a list of parts")
    if not content and not may_be_empty:
        raise HistoryInvalid(f"message {number}: content is empty")


def _encodable(number: int, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise HistoryInvalid(f"message {number}: half a surrogate pair") from exc


def _echoed(call: RawCall, call_id: str) -> dict[str, Any]:
    """The call in the form every endpoint takes back: arguments as text, no characters its names forbid."""
    name = _NOT_IN_NAMES.sub("_", call.name)[:64] or "unnamed"
    arguments = call.arguments
    text = json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments or "{}"
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": mend(text)}}
