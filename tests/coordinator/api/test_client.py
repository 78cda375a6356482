"""The Python client: behind a balancer whose server is away for a while, and with what a model left."""

import asyncio
import contextlib
import http.client
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from coordinator.client import ApiError, Client
from coordinator.service.kept import copy_dir
from tests.coordinator.api.conftest import FIRST_TOKEN, Served


class Balancer(ThreadingHTTPServer):
    """Hands requests on to a server, but says of each address at first that it does not reach it."""

    def __init__(self, base_url: str, statuses: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = base_url.removeprefix("http://")
        self.statuses = statuses
        self.asked: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Balancer

    def do_GET(self) -> None:
        what = f"{self.command} {self.path}"
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        number = self.server.asked[what]
        self.server.asked[what] += 1
        if number < len(self.server.statuses):
            self._answer(self.server.statuses[number], b"<html>Bad gateway</html>")
            return
        behind = http.client.HTTPConnection(self.server.behind, timeout=60)
        behind.request(self.command, self.path, body, dict(self.headers))
        response = behind.getresponse()
        self._answer(response.status, response.read())
        behind.close()

    do_POST = do_GET

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextlib.contextmanager
def balanced(base_url: str, *statuses: int) -> Iterator[Balancer]:
    with Balancer(base_url, list(statuses)) as balancer:
        thread = threading.Thread(target=balancer.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield balancer
        finally:
            balancer.shutdown()
            thread.join()


async def test_a_server_behind_a_balancer_may_be_away_for_a_while(served: Served) -> None:
    def use() -> None:
        with (
            balanced(served.base_url, 502, 503, 504) as balancer,
            Client(balancer.url, FIRST_TOKEN, sleep=lambda _: None) as client,
        ):
            session_id = client.create("say it")["session_id"]
            assert [event.type for event in client.events(session_id)][-1] == "session_ended"
            assert client.wait(session_id)["status"] == "completed"
            assert [one["session_id"] for one in client.find()] == [session_id], "it was made once"

    await asyncio.to_thread(use)


async def test_what_may_have_been_heard_is_not_said_again_and_nobody_asks_for_ever(served: Served) -> None:
    session_id = (await served.client().post("/v1/sessions", json={"prompt": "x"})).json()["session_id"]

    def use() -> None:
        with (
            balanced(served.base_url, *[502] * 50) as balancer,
            Client(balancer.url, FIRST_TOKEN, sleep=lambda _: None) as client,
        ):
            with pytest.raises(ApiError) as unsaid:
                client.message(session_id, "more")
            assert unsaid.value.status == 502
            assert balancer.asked[f"POST /v1/sessions/{session_id}/message"] == 1
            with pytest.raises(ApiError, match="breaks again and again"):
                list(client.events(session_id))
            with pytest.raises(ApiError):
                client.get(session_id)

    await asyncio.to_thread(use)


async def test_a_directory_is_not_taken_for_a_file(served: Served) -> None:
    session_id = (await served.client().post("/v1/sessions", json={"loop": "none"})).json()["session_id"]
    work = copy_dir(served.state_dir / "sessions" / session_id)
    (work / "result.json").mkdir(parents=True)
    (work / "a.json").write_text('{"names": []}')

    def use() -> None:
        with Client(served.base_url, FIRST_TOKEN) as client:
            assert client.file(session_id, "a.json") == b'{"names": []}'
            for path in ("result.json", ""):
                with pytest.raises(ApiError, match="is a directory"):
                    client.file(session_id, path)

    await asyncio.to_thread(use)
