"""The page behind a real server, sessions as they lie on a volume, and a real browser."""

import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from coordinator.service.records import RECORD, SessionRecord
from coordinator.session.events import Event
from coordinator.session.session_events import SessionStarted
from tests.conftest import SCREENSHOTS, without_server
from tests.coordinator.api.conftest import FIRST_TOKEN, Served, Serves

ARGUMENTS = (
    "--no-sandbox",
    "--headless=new",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
)
BEGAN = datetime(2030, 1, 31, 12, 0, 0, tzinfo=UTC)
_CSRF = re.compile(r'name="csrf" value="([0-9a-f]{64})"')


@pytest_asyncio.fixture(loop_scope="module")
async def serve(redis_url: str, state_dir: Path) -> AsyncIterator[Serves]:
    async with AsyncExitStack() as stack:
        yield Serves(stack, redis_url, state_dir)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        without_server("there is no chromium: deploy/setup.sh --dev installs it")
    expect.set_options(timeout=60_000)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield browser
        await browser.close()


@dataclass
class Visit:
    """Somebody who has logged in without a browser."""

    client: httpx2.AsyncClient
    csrf: str

    async def post(self, path: str, **fields: str) -> httpx2.Response:
        return await self.client.post(path, data={"csrf": self.csrf, **fields})


def csrf_in(html: str) -> str:
    found = _CSRF.search(html)
    assert found is not None, html
    return found[1]


async def visit(served: Served, token: str = FIRST_TOKEN) -> Visit:
    """Log in over HTTP."""
    client = served.client(None)
    asked = await client.get("/login")
    answer = await client.post("/login", data={"token": token, "csrf": csrf_in(asked.text)})
    assert answer.status_code == 303, answer.text
    return Visit(client, csrf_in((await client.get("/sessions")).text))


async def open_page(browser: Browser, served: Served, token: str = FIRST_TOKEN, **options: object) -> Page:
    """Log in with a browser."""
    context: BrowserContext = await browser.new_context(base_url=served.base_url, **options)  # type: ignore[arg-type]
    context.set_default_timeout(120_000)
    page = await context.new_page()
    await page.goto("/login")
    await page.fill("#token", token)
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/fleet")
    return page


async def screenshot(page: Page, name: str) -> None:
    """Keep what a page looks like, for people."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=SCREENSHOTS / f"{name}.png")


def started(session_id: str, prompt: str = "Make the failing test pass.") -> SessionStarted:
    return SessionStarted(
        session_id=session_id,
        prompt=prompt,
        model="gpt-5.5",
        policy="boxed",
        workspace_mode="copy",
        workspace_reason="asked for",
        workspace="/srv/project",
        image="sandhog-box:latest",
        max_steps=40,
    )


def keep_session(
    state_dir: Path,
    session_id: str,
    events: Sequence[tuple[float, Event]],
    *,
    principal: str = "local",
    labels: dict[str, str] | None = None,
    age: timedelta | None = None,
) -> Path:
    """Put a session on the volume; each event with the seconds since it began. Without an age it is one of 2030."""
    directory = state_dir / "sessions" / session_id
    directory.mkdir(parents=True)
    began = BEGAN if age is None else datetime.now(UTC) - age
    record = SessionRecord(session_id=session_id, principal=principal, created_at=began, labels=labels or {})
    (directory / RECORD).write_text(record.model_dump_json())
    keep_events(directory / f"{session_id}.1.jsonl", events, began)
    return directory


def keep_events(path: Path, events: Sequence[tuple[float, Event]], began: datetime = BEGAN) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for seq, (at_s, event) in enumerate(events, 1):
            at = (began + timedelta(seconds=at_s)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            file.write(json.dumps({"v": 1, "seq": seq, "at": at, **event.model_dump()}) + os.linesep)
