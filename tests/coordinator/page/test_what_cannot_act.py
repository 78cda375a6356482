"""The page in a real browser: nothing that a session says can act."""

import asyncio
import json

import pytest
from playwright.async_api import Browser, expect

from coordinator.service.journal import chain
from tests.coordinator.api.conftest import Serves
from tests.coordinator.page.browsing import DESK, FIRST, Watch, ask
from tests.coordinator.page.conftest import keep_session, open_page
from tests.coordinator.page.example import HOSTILE, HOSTILE_TEXT, hostile

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


async def test_nothing_that_a_session_says_can_act(serve: Serves, browser: Browser) -> None:
    directory = keep_session(serve.state_dir, FIRST, hostile(FIRST).events, labels={HOSTILE[0]: HOSTILE[1]})
    served = await serve()
    page = await open_page(browser, served, viewport=DESK)
    watch = Watch(page, served)
    requests = served.sessions.cluster.requests
    await requests.ask(ask(FIRST, HOSTILE_TEXT.replace("\ud800", "?"), (3, 40)), 600)

    await page.goto(f"/sessions/{FIRST}")
    await expect(page.locator(".ask")).to_be_visible()
    for details in await page.locator("details.call").all():
        await details.evaluate("element => { element.open = true; }")
    assert await page.evaluate("window.__ran") is None
    # The same once more, through the stream.
    more = hostile(FIRST)
    more.end("failed")
    _, path, _ = chain(directory)[0]
    with path.open("a") as file:
        for seq, (_, event) in enumerate(more.events[1:], 1_000):
            line = {"v": 1, "seq": seq, "at": "2030-01-31T12:30:00.000Z", **event.model_dump()}
            file.write(json.dumps(line) + "\n")
    await expect(page.locator("#facts .status")).to_have_text("failed")
    await expect(page.locator(".note", has_text="failed: the endpoint refused")).to_be_visible()

    for where in ("/sessions", "/fleet", f"/sessions/{FIRST}"):
        await page.goto(where)
        await expect(page.locator("main")).to_be_visible()
    assert await page.evaluate("window.__ran") is None
    assert await page.locator("main img, main iframe, main script, main style, main base").count() == 0
    assert watch.wrong == []
    # Wider than the window is nothing, however long a line is.
    assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


async def test_the_policy_of_the_page_lets_no_script_in(serve: Serves, browser: Browser) -> None:
    """What holds should ever something slip through: the browser itself refuses."""
    served = await serve()
    page = await open_page(browser, served)
    watch = Watch(page, served)
    answered: list[str] = []
    page.on("requestfinished", lambda request: answered.append(request.url) if "evil" in request.url else None)

    await page.evaluate(
        """() => {
            const made = document.createElement('div');
            made.innerHTML = '<img src="https://evil.example/x.png" onerror="window.__ran = 1">';
            document.body.append(made);
            const script = document.createElement('script');
            script.textContent = 'window.__ran = 2';
            document.body.append(script);
        }"""
    )
    await expect(page.locator("main")).to_be_visible()
    while sum("Content Security Policy" in said for said in watch.wrong) < 2:
        await asyncio.sleep(0.05)

    assert await page.evaluate("window.__ran") is None
    assert answered == []
