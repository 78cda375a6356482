"""A model that follows a script, behind a real HTTP server that speaks the chat completions wire.

For tests, demos and measurements: hundreds of sessions can use one endpoint, because what it says next follows
from the messages alone (assistant messages since the last user message). It is as strict as a strict endpoint:
a message list that breaks the protocol is answered 400.

Also a program: `python -m coordinator.endpoint.scripted --script FILE.json --port 0`.
"""

import argparse
import contextlib
import json
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from coordinator.endpoint.scripted_wire import check_request, stream_of, usage_of
from coordinator.errors import ConfigError, HistoryInvalid

KEPT_REQUESTS = 1000
"""As many request bodies are kept for inspection, the newest ones."""


@dataclass(frozen=True)
class ScriptedCall:
    """A tool call the scripted model asks for."""

    name: str
    """The tool."""
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    """An object, or the very text of the arguments, which need not be JSON."""
    id: str | None = None
    """None: made from the number of replies in the messages, unique in its session."""


@dataclass(frozen=True)
class Turn:
    """What the scripted model says to one request."""

    text: str = ""
    """Visible text."""
    calls: tuple[ScriptedCall, ...] = ()
    """Calls, in order."""
    finish_reason: str | None = None
    """None: tool_calls where there are calls, else stop."""
    delay_s: float = 0.0
    """Pause before the first byte."""
    chunk_delay_s: float = 0.0
    """Pause before each further streamed chunk."""
    chunk_chars: int = 24
    """Characters of text or arguments in one streamed chunk."""
    status: int = 200
    """Another status is answered with `error` as its body."""
    error: Mapping[str, Any] | str | None = None
    """The error object of a failing turn; a string is sent as it is, not as JSON."""
    retry_after_s: float | None = None
    """The Retry-After header of a failing turn."""
    raw_sse: bytes | None = None
    """Sent as the stream's body instead of all the above, for odd wires."""
    is_cut: bool = False
    """Whether the connection breaks half-way."""
    first: tuple["Turn", ...] = ()
    """Played once each, one a request of any session, before this turn itself: failures that pass.

    A script that is a function must give the same `Turn` object each time.
    """


Script = Sequence[Turn] | Callable[[list[dict[str, Any]]], Turn]
"""Turns in order, begun anew after each user message; or a function of the messages."""


class ScriptedEndpoint:
    """A running endpoint; use it in a `with` statement, or call `close`.

    Args:
        script: What the model says.
        port: 0 for a free one.
        api_key: Demanded as bearer token; None takes any.
        model: The model's name in answers.
        max_requests: What comes while so many are under way is answered 429; None takes any number.
    """

    def __init__(
        self,
        script: Script,
        *,
        port: int = 0,
        api_key: str | None = None,
        model: str = "scripted",
        max_requests: int | None = None,
    ) -> None:
        self.script = script
        self.api_key = api_key
        self.model = model
        self.requests: deque[dict[str, Any]] = deque(maxlen=KEPT_REQUESTS)
        self.headers: deque[dict[str, str]] = deque(maxlen=KEPT_REQUESTS)
        """Each request's headers, their names in small letters."""
        self.refused = 0
        """Requests that were answered 429 for their number."""
        self._places = None if max_requests is None else threading.BoundedSemaphore(max_requests)
        self.closing = threading.Event()
        self._played: dict[int, tuple[Turn, int]] = {}
        self._lock = threading.Lock()
        self._server = _Server(self, port)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="scripted-endpoint")
        self._thread.start()

    @property
    def base_url(self) -> str:
        """What OPENAI_BASE_URL is to be."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def turn(self, messages: list[dict[str, Any]]) -> Turn:
        """What is said to these messages.

        Raises:
            IndexError: The script is over.
        """
        turn = self.script(messages) if callable(self.script) else self.script[step_of(messages)]
        if not turn.first:
            return turn
        with self._lock:
            # The turn is kept beside its count, so that no other can get its id.
            _, played = self._played.get(id(turn), (turn, 0))
            self._played[id(turn)] = (turn, played + 1)
        return turn.first[played] if played < len(turn.first) else turn

    @contextlib.contextmanager
    def place(self) -> Iterator[bool]:
        """Holds a place for a request; yields whether there was one."""
        has_place = self._places is None or self._places.acquire(blocking=False)
        if not has_place:
            with self._lock:
                self.refused += 1
        try:
            yield has_place
        finally:
            if has_place and self._places is not None:
                self._places.release()

    def close(self) -> None:
        """Ends all connections and threads."""
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.end_connections()
        self._server.server_close()

    def __enter__(self) -> "ScriptedEndpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def step_of(messages: Sequence[Mapping[str, Any]]) -> int:
    """Assistant messages since the last user message: 0 for the first reply to a prompt."""
    step = 0
    for message in reversed(messages):
        if message.get("role") == "user":
            break
        step += message.get("role") == "assistant"
    return step


def load_script(path: Path) -> list[Turn]:
    """Turns from a JSON file: a list of objects with the fields of `Turn`, `calls` as objects of `ScriptedCall`.

    Raises:
        ConfigError: The file cannot be read or does not hold turns.
    """
    try:
        return [_turn_from(fields) for fields in json.loads(path.read_text("utf-8"))]
    except (OSError, ValueError, TypeError, AttributeError) as exc:
        raise ConfigError(f"{path} does not hold a script (a list of turns): {exc}") from exc


def _turn_from(fields: Mapping[str, Any]) -> Turn:
    calls = tuple(ScriptedCall(**call) for call in fields.get("calls", ()))
    first = tuple(_turn_from(turn) for turn in fields.get("first", ()))
    raw_sse = fields.get("raw_sse")
    made = {"calls": calls, "first": first, "raw_sse": None if raw_sse is None else raw_sse.encode()}
    return Turn(**{**fields, **made})


class _Server(ThreadingHTTPServer):
    """Threads that end with the server, and connections it can end."""

    daemon_threads = False
    request_queue_size = 1024

    def __init__(self, endpoint: ScriptedEndpoint, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.endpoint = endpoint
        self._connections: set[socket.socket] = set()
        self._connections_lock = threading.Lock()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._connections_lock:
            self._connections.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._connections_lock:
                self._connections.discard(request)

    def end_connections(self) -> None:
        """Wakes every thread that waits for a next request."""
        with self._connections_lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the server's."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            self._fail(404, f"no such path: {self.path}")
            return
        model = self.server.endpoint.model
        self._send_json(200, {"object": "list", "data": [{"id": model, "object": "model", "owned_by": "sandhog"}]})

    def do_POST(self) -> None:
        endpoint = self.server.endpoint
        length = int(self.headers.get("Content-Length", 0))
        received = self.rfile.read(length)
        if self.path != "/v1/chat/completions":
            self._fail(404, f"no such path: {self.path}")
            return
        if endpoint.api_key is not None and self.headers.get("Authorization") != f"Bearer {endpoint.api_key}":
            self._fail(401, "wrong API key")
            return
        try:
            body = json.loads(received)
            check_request(body)
            endpoint.requests.append(body)
            endpoint.headers.append({name.lower(): value for name, value in self.headers.items()})
            turn = endpoint.turn(body["messages"])
        except (ValueError, HistoryInvalid) as exc:
            self._fail(400, str(exc))
        except IndexError:
            self._fail(400, f"the script has no turn {step_of(body['messages'])}")
        else:
            with endpoint.place() as has_place:
                if has_place:
                    self._play(turn, body, length)
            # Behind the block, so that no client sees its answer before its place is free.
            if not has_place:
                self._fail(429, {"message": "too many requests at once", "type": "rate_limit_error", "code": None})

    def _play(self, turn: Turn, body: dict[str, Any], length: int) -> None:
        self.server.endpoint.closing.wait(turn.delay_s)
        if turn.status != 200:
            self._fail(turn.status, turn.error or "scripted failure", turn.retry_after_s)
            return
        message = _message(turn, body["messages"])
        usage = usage_of(message, length)
        envelope = {"id": "chatcmpl-scripted", "created": 0, "model": body["model"]}
        if body.get("stream"):
            wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
            events = stream_of(
                message,
                envelope,
                finish_reason=_finish_reason(turn),
                usage=usage if wants_usage else None,
                chunk_chars=turn.chunk_chars,
            )
            self._stream(turn, events)
            return
        choice = {"index": 0, "message": message, "finish_reason": _finish_reason(turn), "logprobs": None}
        self._send_json(200, {**envelope, "object": "chat.completion", "choices": [choice], "usage": usage})

    def _stream(self, turn: Turn, events: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        pieces = list(events) if turn.raw_sse is None else [turn.raw_sse]
        if turn.is_cut:
            pieces = pieces[: max(1, len(pieces) // 2)] if turn.raw_sse is None else pieces
        if turn.chunk_delay_s <= 0:
            pieces = [b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)]
        else:
            pieces = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
        for number, piece in enumerate(pieces):
            if number:
                self.server.endpoint.closing.wait(turn.chunk_delay_s)
            self.wfile.write(piece)
            self.wfile.flush()
        if turn.is_cut:
            self.close_connection = True
            return
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _fail(self, status: int, error: Mapping[str, Any] | str, retry_after_s: float | None = None) -> None:
        headers = {} if retry_after_s is None else {"Retry-After": f"{retry_after_s:g}"}
        kind = "invalid_request_error" if status < 500 else "server_error"
        fields = error if isinstance(error, Mapping) else {"message": error, "type": kind, "code": None}
        self._send_json(status, {"error": fields}, headers)

    def _send_json(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: `requests` holds what came."""


def _finish_reason(turn: Turn) -> str:
    return turn.finish_reason or ("tool_calls" if turn.calls else "stop")


def _message(turn: Turn, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The turn as an unstreamed assistant message."""
    replies = sum(1 for message in messages if message.get("role") == "assistant")
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": call.id if call.id is not None else f"call_{replies}_{index}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments),
                },
            }
            for index, call in enumerate(turn.calls)
        ]
    return message


def main() -> None:
    """Serves a script file until it is told to end."""
    parser = argparse.ArgumentParser(prog="python -m coordinator.endpoint.scripted", description=main.__doc__)
    parser.add_argument("--script", type=Path, required=True, help="JSON file with a list of turns")
    parser.add_argument("--port", type=int, default=0, help="0 for a free one")
    arguments = parser.parse_args()
    try:
        script = load_script(arguments.script)
    except ConfigError as exc:
        parser.error(str(exc))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    with ScriptedEndpoint(script, port=arguments.port) as endpoint:
        print(endpoint.base_url, flush=True)
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
