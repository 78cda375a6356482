"""One server of one session: started when first wanted, its tools listed, and started again when it has ended.

For the loop's thread only. The SDK wants its connection entered and left by one task: that task is the server's life.
"""

import asyncio
import contextlib
import importlib.metadata
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from mcp import Client, MCPError
from mcp.client._transport import TransportStreams
from mcp.client.session import IncomingMessage
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    REQUEST_TIMEOUT,
    CallToolResult,
    Implementation,
    Tool,
    ToolListChangedNotification,
)

from worker.contract.mcp import McpServer

log = logging.getLogger(__name__)

MOST_PAGES = 20
MOST_TOOLS = 128
AGAIN_S = 1.0
"""A server that could not be started is tried again after this long, and each time twice as long, up to a minute."""
MOST_AGAIN_S = 60.0
SETTLE_S = 2.0
WORDS_CHARS = 500


class ServerFailed(Exception):
    """The server cannot be reached or started; nothing ran."""


class ServerLost(Exception):
    """The server ended while a call ran; the call may have run."""


class ServerTimeout(Exception):
    """The server did not answer a call in time; the call may have run."""


class ServerRefused(Exception):
    """The server declined a call."""

    def __init__(self, words: str, *, is_mistake: bool) -> None:
        super().__init__(words)
        self.is_mistake = is_mistake
        """The call's arguments were wrong."""


class Opening(Protocol):
    """Opens the way to a server."""

    def __call__(self, on_end: Callable[[str], None]) -> AbstractAsyncContextManager[TransportStreams]:
        """Return the streams of a server that is started or connected to.

        `on_end` is called with its last words when it has ended.
        """


class Connection:
    """A server and what is known of its tools."""

    def __init__(self, server: McpServer, opening: Opening, clock: Callable[[], float]) -> None:
        self.server = server
        self.tools: tuple[Tool, ...] = ()
        """As it listed them last."""
        self._opening = opening
        self._clock = clock
        self._life: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Client] | None = None
        self._over = asyncio.Event()
        self._changed = asyncio.Event()
        """Its tools changed, and are not asked for yet."""
        self._current = asyncio.Event()
        """Its tools are those that it has, as far as it said."""
        self._failures = 0
        self._not_before = 0.0
        self._fault = ""

    async def list(self) -> tuple[Tool, ...]:
        """Return its tools; starts it if it does not run.

        Raises:
            ServerFailed: it does not start, or does not list them.
        """
        await self._client()
        return self.tools

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Return what the server answers.

        Raises:
            ServerFailed, ServerLost, ServerTimeout, ServerRefused.
        """
        client = await self._client()
        try:
            answer = await client.call_tool(tool, dict(arguments), read_timeout_seconds=self.server.timeout_s)
            await self._settle()
            return answer
        except MCPError as exc:
            if exc.code == CONNECTION_CLOSED:
                self._over.set()
                raise ServerLost(_words(exc)) from exc
            if exc.code == REQUEST_TIMEOUT:
                raise ServerTimeout(_words(exc)) from exc
            is_mistake = exc.code in (INVALID_PARAMS, METHOD_NOT_FOUND)
            raise ServerRefused(_words(exc), is_mistake=is_mistake) from exc
        except (OSError, RuntimeError) as exc:
            # The streams are closed: it is gone.
            self._over.set()
            raise ServerLost(_words(exc)) from exc
        except TimeoutError as exc:
            raise ServerTimeout("no answer in time") from exc

    async def _settle(self) -> None:
        """Come back once the tools are listed again that the call changed; not much later in any case."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await self._current.wait()

    def reset(self) -> None:
        """Let the next call start it anew: what it ran in is gone."""
        self._over.set()
        self._not_before = 0.0

    async def close(self) -> None:
        """End it. Idempotent."""
        self._over.set()
        if self._life is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait({self._life}, timeout=self.server.start_s)
            self._life.cancel()

    async def _client(self) -> Client:
        if self._life is None or self._life.done() or self._over.is_set():
            await self._start()
        ready = self._ready
        assert ready is not None
        try:
            async with asyncio.timeout(self.server.start_s):
                return await asyncio.shield(ready)
        except TimeoutError as exc:
            self._over.set()
            raise ServerFailed(f"it was not ready within {self.server.start_s:g} s") from exc

    async def _start(self) -> None:
        if self._life is not None and not self._life.done():
            await asyncio.wait({self._life}, timeout=self.server.start_s)
        if self._life is not None and not self._life.done():
            raise ServerFailed("its earlier life does not end")
        if self._clock() < self._not_before:
            raise ServerFailed(f"{self._fault}; it is tried again in {self._not_before - self._clock():.0f} s")
        self._over, self._changed = asyncio.Event(), asyncio.Event()
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        # Nobody may be left to take its failure.
        ready.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._ready = ready
        self._life = asyncio.create_task(self._live(ready), name=f"mcp {self.server.name}")

    async def _live(self, ready: "asyncio.Future[Client]") -> None:
        over, said = self._over, ""

        def ended(words: str) -> None:
            nonlocal said
            said = words.strip() or said
            over.set()

        try:
            async with Client(
                self._opening(ended),
                cache=None,
                client_info=Implementation(name="sandhog", version=importlib.metadata.version("sandhog")),
                message_handler=self._heard,
                read_timeout_seconds=self.server.start_s,
            ) as client:
                self.tools = await _listed(client)
                self._failures = 0
                self._current.set()
                ready.set_result(client)
                listening = asyncio.create_task(self._listen(client), name=f"mcp {self.server.name} changes")
                try:
                    await self._follow(client, over)
                finally:
                    listening.cancel()
                    await asyncio.wait({listening})
        except Exception as exc:
            self._failed(exc, said)
            if not ready.done():
                ready.set_exception(ServerFailed(self._fault))
        finally:
            over.set()
            if not ready.done():
                ready.set_exception(ServerFailed("it was ended"))

    async def _follow(self, client: Client, over: asyncio.Event) -> None:
        """List its tools again whenever they changed, until it is over."""
        while True:
            waiting = {asyncio.create_task(over.wait()), asyncio.create_task(self._changed.wait())}
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
            if over.is_set():
                return
            try:
                self.tools = await _listed(client)
            except MCPError as exc:
                log.warning(
                    "an MCP server does not list its tools", extra={"server": self.server.name, "error": str(exc)}
                )

    async def _listen(self, client: Client) -> None:
        """Hear of changes from a server of the protocol's later kind, which tells nobody unasked."""
        with contextlib.suppress(Exception):
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self._note_change()

    async def _heard(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._note_change()

    def _note_change(self) -> None:
        self._current.clear()
        self._changed.set()

    def _failed(self, exc: BaseException, said: str) -> None:
        while isinstance(exc, BaseExceptionGroup) and exc.exceptions:
            exc = exc.exceptions[0]
        self._fault = _words(exc) + (f" (it said: {said[-WORDS_CHARS:]})" if said else "")
        self._failures += 1
        self._not_before = self._clock() + min(AGAIN_S * 2 ** (self._failures - 1), MOST_AGAIN_S)
        log.warning("an MCP server failed", extra={"server": self.server.name, "error": self._fault})


async def _listed(client: Client) -> tuple[Tool, ...]:
    found: list[Tool] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None or len(found) > MOST_TOOLS:
            break
    return tuple(found)


def _words(exc: BaseException) -> str:
    return f"{exc or type(exc).__name__}"[:WORDS_CHARS]
