"""A Python client of the HTTP API: your program → **client** → `sandhog serve`.

    with Client("http://127.0.0.1:8470", token) as client:
        session = client.create("Fix the failing test", workspace="project")
        print(client.wait(session["session_id"])["text"])

One that makes its own model calls needs two: `create(loop="none")` and `tool_calls`.
"""

import json
import os
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx2

from coordinator.errors import ConfigError, SandhogError

ENDED = frozenset({"completed", "stopped", "failed", "cancelled"})
TRIES = 5
AWAY = frozenset({502, 503, 504})
"""Statuses of a server that cannot answer now: its own, and those of a proxy or balancer that does not reach it."""
WAIT_S = 30.0
"""How long one request waits on the server; then it is asked again."""
SILENCE_S = 60.0
"""A stream on which nothing came for so long, not even a sign of life, is taken up anew."""


class ApiError(SandhogError):
    """The server said no, or could not be asked.

    Args:
        code: The server's, such as NOT_FOUND; UNREACHABLE where there was no answer.
        message: What was asked, and what is wrong with it.
        fix: What to do; "" where the message says it.
        status: The HTTP status; 0 where there was no answer.
    """

    def __init__(self, code: str, message: str, fix: str = "", *, status: int = 0) -> None:
        super().__init__(f"{message} {fix}".strip())
        self.code = code
        self.message = message
        self.fix = fix
        self.status = status


@dataclass(frozen=True)
class StreamedEvent:
    """One event of a session."""

    id: str | None
    """To go on behind it; None for a piece of text, which is not kept."""
    type: str
    data: dict[str, Any]


class Client:
    """Asks one server. Safe to be used by one thread at a time; `close` it when done, or use `with`.

    What can be asked again without doing it twice is asked again when the server does not answer.

    Args:
        url: Where the server is; None is `SANDHOG_URL`, or a server on this machine.
        token: Who asks; None is `SANDHOG_API_TOKEN`.
        timeout_s: How long an answer may take, beside the time that the server was told to wait.
        sleep: Waits for seconds.

    Raises:
        ConfigError: there is no token.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        token = token or os.environ.get("SANDHOG_API_TOKEN")
        if not token:
            raise ConfigError("No token: give one, or set SANDHOG_API_TOKEN (`sandhog token create NAME` makes one).")
        base_url = url or os.environ.get("SANDHOG_URL") or "http://127.0.0.1:8470"
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._http = httpx2.Client(
            base_url=base_url.rstrip("/"),
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx2.Timeout(timeout_s),
            trust_env=not base_url.startswith(("http://127.", "http://localhost", "http://[::1]")),
        )

    def create(self, prompt: str = "", *, idempotency_key: str | None = None, **wanted: Any) -> dict[str, Any]:
        """Make a session and return it; asked again under one key where the answer got lost.

        Args:
            prompt: What the agent is to do; "" with `loop="none"`.
            idempotency_key: None makes one.
            wanted: The other fields of `POST /v1/sessions`: workspace, repo, model, limits, labels, …

        Raises:
            ApiError: it may not be had.
        """
        body = {**({"prompt": prompt} if prompt else {}), **wanted}
        key = idempotency_key or uuid.uuid4().hex
        return self._json("POST", "/v1/sessions", json=body, headers={"Idempotency-Key": key})

    def get(self, session_id: str) -> dict[str, Any]:
        """Return a session as it is now."""
        return self._json("GET", _path(session_id))

    def find(self, **filters: Any) -> Iterator[dict[str, Any]]:
        """Yield your sessions, the newest first: `find(status="failed", label="team=a")`."""
        after: str | None = None
        while True:
            page = self._json("GET", "/v1/sessions", params={**filters, **({"after": after} if after else {})})
            yield from page["sessions"]
            after = page["next"]
            if after is None:
                return

    def wait(self, session_id: str, timeout_s: float | None = None) -> dict[str, Any]:
        """Return a session once it has ended, or waits for a message.

        Raises:
            ApiError: TIMEOUT, it did not within the time.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = WAIT_S if deadline is None else min(WAIT_S, deadline - time.monotonic())
            session = self._json("GET", _path(session_id), params={"wait": max(left_s, 0.0)})
            if session["status"] in ENDED or session["status"] == "idle":
                return session
            if deadline is not None and time.monotonic() >= deadline:
                raise ApiError("TIMEOUT", f"Session {session_id} has not ended within {timeout_s} s.")

    def events(self, session_id: str, after: str | None = None) -> Iterator[StreamedEvent]:
        """Yield a session's events until it ends; a broken stream is taken up where it was.

        Args:
            session_id: The session.
            after: The id of the last event that you have; None for all.

        Raises:
            ApiError: the server cannot be reached any more, or the session has not got as far as that event.
        """
        failures = 0
        while True:
            has_ended = False
            try:
                for event in self._stream(session_id, after):
                    failures = 0
                    after = event.id or after
                    has_ended = event.type == "session_ended"
                    yield event
                if has_ended or self.get(session_id)["status"] in ENDED:
                    return
            except (httpx2.HTTPError, ApiError) as exc:
                if isinstance(exc, ApiError) and exc.status not in AWAY:
                    raise
                failures += 1
                if failures >= TRIES:
                    raise ApiError("UNREACHABLE", f"The stream of {session_id} breaks again and again: {exc}") from exc
            self._sleep(_pause_s(failures))

    def message(self, session_id: str, text: str) -> dict[str, Any]:
        """Say something to a session."""
        return self._once("POST", f"{_path(session_id)}/message", json={"text": text})

    def fork(
        self, session_id: str, prompt: str, *, idempotency_key: str | None = None, **wanted: Any
    ) -> dict[str, Any]:
        """Make a fork of a session and return it; asked again under one key where the answer got lost.

        Args:
            session_id: The session.
            prompt: What you say to the fork.
            idempotency_key: None makes one.
            wanted: The other fields of `POST /v1/sessions/{id}/fork`: at_step, model, limits, labels, …

        Raises:
            ApiError: it may not be had, or there is nothing that could be copied.
        """
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self._json("POST", f"{_path(session_id)}/fork", json={"prompt": prompt, **wanted}, headers=headers)

    def finish(self, session_id: str, text: str = "") -> dict[str, Any]:
        """Let a session complete that waits for a message or for calls."""
        return self._json("POST", f"{_path(session_id)}/finish", json={"text": text})

    def cancel(self, session_id: str) -> dict[str, Any]:
        """End a session."""
        return self._json("POST", f"{_path(session_id)}/cancel")

    def cancel_call(self, session_id: str, name: str) -> dict[str, Any]:
        """End one call of a session that runs, as `3.0`; the session goes on.

        Raises:
            ApiError: CONFLICT, it had ended; NOT_FOUND, there is none.
        """
        return self._json("POST", f"{_path(session_id)}/calls/{quote(name, safe='')}/cancel")

    def cancel_calls(self, session_id: str, step: int) -> dict[str, Any]:
        """End all calls of a step that have no answer yet; the session goes on. Raises as `cancel_call`."""
        return self._json("POST", f"{_path(session_id)}/steps/{step}/cancel")

    def limit(self, session_id: str, **limits: Any) -> dict[str, Any]:
        """Change a session's limits and return those it has now."""
        return self._json("PATCH", f"{_path(session_id)}/limits", json=limits)

    def approvals(self, session_id: str) -> list[dict[str, Any]]:
        """Return the calls about which a human is asked."""
        return list(self._json("GET", f"{_path(session_id)}/approvals")["approvals"])

    def approve(
        self, session_id: str, name: str, *, allow: bool, always: bool = False, note: str = ""
    ) -> dict[str, Any]:
        """Answer one of them."""
        body = {"decision": "allow" if allow else "deny", "always": always, "note": note}
        return self._once("POST", f"{_path(session_id)}/approvals/{quote(name)}", json=body)

    def tools(self, session_id: str) -> list[dict[str, Any]]:
        """Return the session's tools in the form that chat completion endpoints take."""
        return list(self._json("GET", f"{_path(session_id)}/tools")["tools"])

    def tool_calls(
        self, session_id: str, calls: Sequence[Mapping[str, Any] | Any], *, step: int | str | None = None
    ) -> list[dict[str, Any]]:
        """Run an assistant message's `tool_calls` and return the `role: tool` messages that go behind it.

        Asked again under the same step until the answers are there: nothing runs twice.

        Args:
            session_id: A session made with `loop="none"`.
            calls: As the model gave them: objects of the openai package, or plain dictionaries.
            step: Yours, counted up with each assistant message; None makes one for this very call.
        """
        name = str(step) if step is not None else uuid.uuid4().hex
        body = {"step": name, "tool_calls": [_plain(call) for call in calls]}
        path = f"{_path(session_id)}/tool_calls"
        while True:
            # Posted, not only asked for: a server that died may have taken the step and not come to keep it.
            answer = self._json("POST", path, json=body, params={"wait": WAIT_S})
            if answer["status"] == "done":
                return list(answer["messages"])

    def cancel_step(self, session_id: str, step: int | str) -> dict[str, Any]:
        """End a step that runs; each of its calls has its answer then."""
        return self._json("POST", f"{_path(session_id)}/tool_calls/{quote(str(step), safe='')}/cancel")

    def transcript(self, session_id: str) -> Iterator[dict[str, Any]]:
        """Yield the session's kept events as they are now."""
        for line in self._bytes(f"{_path(session_id)}/transcript").splitlines():
            yield json.loads(line)

    def patch(self, session_id: str) -> bytes:
        """Return the changes that a session made, once it has ended; for `git apply`."""
        return self._bytes(f"{_path(session_id)}/patch")

    def file(self, session_id: str, path: str) -> bytes:
        """Return a file of a session's workspace.

        Raises:
            ApiError: there is none; INVALID, a directory stands there.
        """
        response = self._asked("GET", f"{_path(session_id)}/files/{quote(path)}", TRIES)
        if response.headers.get("content-type", "").startswith("application/json"):
            # Its names, which nobody must take for the content of a file.
            raise ApiError("INVALID", f"{path!r} is a directory.", status=response.status_code)
        return bytes(response.content)

    def upload(self, archive: Path) -> str:
        """Send an archive and return its name, for `create(archive=…)`."""
        with archive.open("rb") as file:
            return str(self._json("PUT", "/v1/archives", content=file.read())["archive"])

    def nodes(self) -> list[dict[str, Any]]:
        """Return the cluster's nodes."""
        return list(self._json("GET", "/v1/nodes")["nodes"])

    def me(self) -> dict[str, Any]:
        """Return who the token is, and what it may."""
        return self._json("GET", "/v1/principals/me")

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _json(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        return dict(self._asked(method, path, TRIES, **more).json())

    def _once(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """As `_json`, for what must not be asked again: it may have been heard."""
        return dict(self._asked(method, path, 1, **more).json())

    def _bytes(self, path: str) -> bytes:
        return bytes(self._asked("GET", path, TRIES).content)

    def _asked(self, method: str, path: str, tries: int, **more: Any) -> httpx2.Response:
        """Return the answer, asked for again while the server is away or busy.

        Raises:
            ApiError: the server says no, or does not answer.
        """
        wait_s = float(more.get("params", {}).get("wait", 0.0))
        for failures in range(1, tries + 1):
            retry_after_s: float | None = None
            try:
                response = self._http.request(method, path, timeout=self._timeout_s + wait_s, **more)
                if response.is_success:
                    return response
                error = _error(response)
                if response.status_code not in AWAY:
                    raise error
                retry_after_s = _seconds(response.headers.get("retry-after"))
            except httpx2.HTTPError as exc:
                error = ApiError("UNREACHABLE", f"{self._http.base_url} does not answer: {exc or type(exc).__name__}")
                error.__cause__ = exc
            if failures < tries:
                self._sleep(max(_pause_s(failures), min(retry_after_s or 0.0, WAIT_S)))
        raise error

    def _stream(self, session_id: str, after: str | None) -> Iterator[StreamedEvent]:
        headers = {"Last-Event-ID": after} if after else {}
        timeout = httpx2.Timeout(self._timeout_s, read=SILENCE_S)
        with self._http.stream("GET", f"{_path(session_id)}/events", headers=headers, timeout=timeout) as response:
            if not response.is_success:
                response.read()
                raise _error(response)
            fields: dict[str, str] = {}
            for line in _lines(response.iter_text()):
                if line.startswith(":"):
                    continue
                if line:
                    name, _, value = line.partition(":")
                    fields[name] = value.removeprefix(" ")
                elif fields:
                    yield StreamedEvent(fields.get("id"), fields["event"], json.loads(fields["data"]))
                    fields = {}


def _path(session_id: str) -> str:
    return f"/v1/sessions/{quote(session_id, safe='')}"


def _lines(pieces: Iterable[str]) -> Iterator[str]:
    """Yield a stream's lines. Text may hold other characters that end lines elsewhere, as U+2028."""
    rest = ""
    for piece in pieces:
        *lines, rest = (rest + piece).split("\n")
        yield from (line.removesuffix("\r") for line in lines)


def _plain(call: Mapping[str, Any] | Any) -> dict[str, Any]:
    if isinstance(call, Mapping):
        return dict(call)
    # An object of the openai package.
    return dict(call.model_dump())


def _error(response: httpx2.Response) -> ApiError:
    try:
        error = response.json()["error"]
        return ApiError(error["code"], error["message"], error["fix"], status=response.status_code)
    except (ValueError, KeyError, TypeError):
        words = f"The server answered {response.status_code}: {response.text[:200]}"
        return ApiError("UNREADABLE", words, status=response.status_code)


def _pause_s(failures: int) -> float:
    return min(0.2 * 2.0**failures, 5.0) * (0.5 + random.random() / 2)


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() else None
