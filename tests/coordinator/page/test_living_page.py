"""The page in a real browser: it shows what happens while it happens, as long as somebody is logged in."""

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from coordinator.endpoint.scripted import Turn
from coordinator.session.session_events import ChildEnded, ChildStarted
from tests.coordinator.api.conftest import Serves, prompt
from tests.coordinator.page.browsing import DESK, FIRST, Watch
from tests.coordinator.page.conftest import keep_session, open_page, started
from tests.coordinator.page.example import HOSTILE, Telling

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


async def test_words_come_as_the_model_says_them(serve: Serves, browser: Browser) -> None:
    gate = threading.Event()
    words = "The cause is <b>clear</b>: \x1b[31m an amount loses its zero. " * 4

    def script(messages: list[dict[str, Any]]) -> Turn:
        gate.wait(100)
        return Turn(words, chunk_chars=12, chunk_delay_s=0.02)

    served = await serve(script)
    client = served.client()
    session_id = (await client.post("/v1/sessions", json=prompt())).json()["session_id"]
    page = await open_page(browser, served, viewport=DESK)
    await page.goto(f"/sessions/{session_id}")
    await expect(page.locator("#said-1")).to_be_attached()
    await page.evaluate(
        """() => {
            window.pieces = [];
            const look = () => {
                const words = document.getElementById('said-1');
                if (words && words.textContent) window.pieces.push(words.textContent);
            };
            new MutationObserver(look).observe(document.body, { childList: true, subtree: true, characterData: true });
        }"""
    )
    gate.set()

    await expect(page.locator("#facts .status")).to_have_text("completed")
    pieces: list[str] = await page.evaluate("window.pieces")
    assert len(pieces) > 3
    assert "<b>clear</b>: ␛[31m" in pieces[-1]
    await expect(page.locator(".step pre.words")).to_contain_text("<b>clear</b>: ␛[31m an amount")
    assert await page.locator(".step pre b").count() == 0
    await expect(page.locator("main")).not_to_have_class("stale")


def go_on(path: Path, told: Telling, seen: int) -> int:
    """Write down what was told since; return how much that is now."""
    with path.open("a") as file:
        for seq, (_, event) in enumerate(told.events[seen:], seen + 1):
            line = {"v": 1, "seq": seq, "at": f"2030-01-31T12:30:{seq:02}.000Z", **event.model_dump()}
            file.write(json.dumps(line) + "\n")
    return len(told.events)


async def test_sub_agents_are_nested_and_live(serve: Serves, browser: Browser) -> None:
    told = Telling(FIRST)
    told.reply("Somebody else shall look.", [("Task", '{"description": "Look around"}')])
    told.begin(0, "Task", "Look around")
    transcript = f"children/1-1-0/{FIRST}.1-1-0.1.jsonl"
    about: dict[str, Any] = {"step": 1, "index": 0, "child": f"{FIRST}.1-1-0", "transcript": transcript}
    told.add(0.1, ChildStarted(description="Look around", profile="explore", **about))
    directory = keep_session(serve.state_dir, FIRST, told.events)
    own = next(directory.glob("*.jsonl"))
    child, path = Telling("child"), directory / transcript
    path.parent.mkdir(parents=True)
    child.reply(f"I look {HOSTILE[0]}", [("Grep", '{"pattern": "a"}')])
    child.begin(0, "Grep", "amount")
    seen, seen_here = go_on(path, child, 0), len(told.events)
    served = await serve()
    page = await open_page(browser, served, viewport=DESK)
    watch = Watch(page, served)
    await page.goto(f"/sessions/{FIRST}")

    # Open it by keyboard; it stays open whatever comes.
    summary = page.locator("#steps-1-1-0 > summary")
    await summary.focus()
    await page.keyboard.press("Enter")
    within = page.locator("#steps-1-1-0 .within")
    await expect(within).to_have_count(1)
    await expect(within.first).to_contain_text("I look <script>")
    await expect(within.first.locator(".call.running")).to_contain_text("amount")
    child.finish(0, "Grep", "one line")
    child.reply("And now this.", [("Read", "{}")])
    seen = go_on(path, child, seen)
    await expect(within).to_have_count(2)
    await expect(within.first.locator(".call.success")).to_contain_text("amount")
    await expect(summary).to_be_focused()

    # Its own page lives, too, and ends with it.
    alone = await page.context.new_page()
    await alone.goto(f"/sessions/{FIRST}/agents/1-1-0")
    await expect(alone.locator(".step")).to_have_count(2)
    child.begin(0, "Read", "ledger/money.py")
    seen = go_on(path, child, seen)
    await expect(alone.locator("details.call.running")).to_contain_text("ledger/money.py")
    await expect(within.nth(1).locator(".call.running")).to_contain_text("ledger/money.py")
    child.finish(0, "Read", "three lines")
    child.end()
    go_on(path, child, seen)
    ends = ChildEnded(description="Look around", status="completed", stop_reason="done", steps=2, calls=2, **about)
    told.add(0.1, ends)
    seen_here = go_on(own, told, seen_here)
    await expect(alone.locator(".note.good")).to_contain_text("completed")
    await expect(page.locator(".agent .status")).to_have_text("completed")
    await expect(within.nth(1).locator(".call.success")).to_contain_text("ledger/money.py")
    await page.keyboard.press("Enter")
    await expect(within.first).to_be_hidden()
    await page.keyboard.press("Enter")
    await within.nth(1).get_by_role("link", name="answer").click()
    await expect(page.locator("body")).to_contain_text("three lines")
    assert watch.wrong == []


async def test_an_open_page_ends_with_its_login(serve: Serves, browser: Browser) -> None:
    keep_session(serve.state_dir, FIRST, [(0, started(FIRST))])
    served = await serve()
    token = served.tokens.create("local")
    page = await open_page(browser, served, token)
    await page.goto(f"/sessions/{FIRST}")

    served.tokens.revoke(token.split("_")[1])

    await page.wait_for_url(re.compile(r"/login\?to="), timeout=60_000)
