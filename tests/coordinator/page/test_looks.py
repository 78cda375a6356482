"""The page in a real browser: by keyboard, light and dark, wide and narrow."""

import json
import time
from datetime import timedelta
from typing import Literal

import pytest
import redis
from playwright.async_api import Browser, ViewportSize, expect

from tests.coordinator.api.conftest import Serves
from tests.coordinator.page.browsing import DESK, FIRST, PHONE, SECOND, ask, node
from tests.coordinator.page.conftest import keep_events, keep_session, open_page, screenshot
from tests.coordinator.page.example import PATCH, Telling, hostile, ordinary, sub_agent
from worker.contract import keys

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


TOO_WIDE = """() => [...document.querySelectorAll('main *, header *')]
    .filter(one => one.getBoundingClientRect().left + one.scrollWidth > window.innerWidth + 1)
    .filter(one => !one.closest('svg, .summary, input, select'))
    .map(one => `${one.tagName}.${one.className} ${one.textContent.slice(0, 60)}`)
    .concat(document.documentElement.scrollWidth > window.innerWidth ? ['the page'] : [])"""
"""What stands beyond the right edge of the window, also where only a part of the page would scroll."""


def fault(client: redis.Redis, key: str, tool: str) -> None:
    """A breaker that is open."""
    now_ms = int(time.time() * 1000)
    record = {
        "faults": 3,
        "open_until": now_ms + 250_000,
        "probe": "",
        "probe_until": 0,
        "last": "x",
        "why": "TIMEOUT",
        "by": {},
        "expires": now_ms + 3_600_000,
    }
    client.hset(key, tool, json.dumps(record))


async def test_it_can_be_used_by_keyboard(serve: Serves, browser: Browser) -> None:
    keep_session(serve.state_dir, FIRST, ordinary(FIRST).events)
    served = await serve()
    page = await open_page(browser, served, viewport=DESK)
    await page.goto("/sessions")

    await page.keyboard.press("Tab")
    await expect(page.get_by_text("Skip to the content")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.locator("input[name=text]").focus()
    await page.keyboard.type("decimal")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**text=decimal**")
    await page.goto("/sessions?status=live")
    # The focus stays on what had it, also when the list is refreshed.
    async with page.expect_response(lambda answer: "x-fragment" in answer.request.headers, timeout=60_000):
        await page.locator(f"#row-{FIRST}").focus()
    await expect(page.locator(f"#row-{FIRST}")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/sessions/{FIRST}")
    await page.locator("#call-1-1 summary").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#call-1-1 pre").last).to_contain_text("partition")


async def test_it_looks_like_this(serve: Serves, browser: Browser, redis_client: redis.Redis) -> None:
    """Screenshots of all pages, light and dark, wide and narrow; what must be on them is looked for."""
    told = ordinary(FIRST)
    first = keep_session(serve.state_dir, FIRST, told.events, labels={"ticket": "1234"}, age=timedelta(minutes=7))
    keep_events(first / "children" / "1-2-1" / f"{FIRST}.1-2-1.1.jsonl", sub_agent().events)
    for number in range(40):
        name = f"20300131-11{number:02}00-{number:08x}"
        other = Telling(name)
        for step in range(1 + number % 7):
            other.reply(f"step {step}")
        if number % 9:
            status = ("completed", "completed", "stopped", "failed", "completed", "cancelled")[number % 6]
            other.end(status, cost_usd=number * 0.13)
        owner = ("local", "team-a", "nightly")[number % 3]
        keep_session(serve.state_dir, name, other.events, principal=owner, age=timedelta(minutes=90 - number))
    finished = ordinary(SECOND)
    finished.end(patch="patch.diff")
    second = keep_session(serve.state_dir, SECOND, finished.events, labels={"ticket": "1235"}, age=timedelta(minutes=5))
    (second / "patch.diff").write_bytes(PATCH)
    client = redis_client
    node(client, "node-a", places=16, lanes=64, used=(11, 23))
    node(client, "node-b", places=16, lanes=64, used=(16, 41))
    node(client, "node-c", places=8, lanes=32)
    client.delete(keys.lease("node-c"))
    fault(client, keys.node_breakers("node-b"), "WebFetch")
    served = await serve()
    requests = served.sessions.cluster.requests
    await requests.ask(ask(FIRST, "rm -r build && python3 -m build", (0, 11)), 600)
    about = "Find other readers of amounts"
    await requests.ask(ask(f"{FIRST}.1-2-1", "git fetch --all\ngit log -3", (0, 15), agent=about), 600)
    chief = served.principal("chief", is_operator=True).headers["authorization"].split()[1]

    page = await open_page(browser, served, chief, viewport=DESK)
    schemes: list[tuple[str, Literal["light", "dark"], ViewportSize]] = [
        ("light", "light", DESK),
        ("dark", "dark", DESK),
        ("phone", "light", PHONE),
    ]
    for kind, scheme, size in schemes:
        await page.emulate_media(color_scheme=scheme)
        await page.set_viewport_size(size)
        await page.goto("/fleet")
        await expect(page.get_by_text("27 / 32")).to_be_visible()
        await screenshot(page, f"fleet-{kind}")
        await page.goto("/sessions")
        await expect(page.locator("table.sessions tbody tr")).to_have_count(42)
        await screenshot(page, f"sessions-{kind}")
        await page.goto(f"/sessions/{FIRST}")
        await expect(page.locator(".ask")).to_have_count(2)
        await screenshot(page, f"session-{kind}")
        await page.locator("#call-3-0 summary").click()
        await page.locator("#steps-1-2-1 > summary").click()
        await page.locator("#steps-1-2-1").scroll_into_view_if_needed()
        await screenshot(page, f"session-steps-{kind}")
        await page.goto(f"/sessions/{SECOND}/diff")
        await expect(page.locator(".diff .add")).to_have_count(2)
        await screenshot(page, f"diff-{kind}")
        await page.goto("/approvals")
        await expect(page.locator(".ask")).to_have_count(2)
        await screenshot(page, f"approvals-{kind}")
        await page.goto(f"/sessions/{FIRST}/agents/1-2-1")
        await expect(page.locator(".step")).to_have_count(2)
        await screenshot(page, f"agent-{kind}")
    await page.context.close()


async def test_a_phone_scrolls_down_and_never_sideways(serve: Serves, browser: Browser) -> None:
    long = "unbreakable" * 60
    told = ordinary(FIRST)
    directory = keep_session(
        serve.state_dir, FIRST, [*told.events, *hostile(FIRST).events[1:]], labels={long[:80]: long}, principal="o" * 60
    )
    keep_events(directory / "children" / "1-2-1" / f"{FIRST}.1-2-1.1.jsonl", sub_agent(long).events)
    finished = ordinary(SECOND)
    finished.end(patch="patch.diff")
    second = keep_session(serve.state_dir, SECOND, finished.events)
    (second / "patch.diff").write_bytes(PATCH + b"+" + long.encode() * 20 + b"\n")
    served = await serve()
    for text, agent in ((long, ""), ("rm -r build", long)):
        asker = f"{FIRST}.1-2-1" if agent else FIRST
        await served.sessions.cluster.requests.ask(ask(asker, text, (0, 8), agent=agent), 600)
    chief = served.principal("c" * 60, is_operator=True).headers["authorization"].split()[1]
    page = await open_page(browser, served, chief, viewport={"width": 360, "height": 740})
    session = f"/sessions/{FIRST}"
    paths = ("/fleet", "/sessions", session, f"{session}/agents/1-2-1", "/approvals", f"/sessions/{SECOND}/diff", "/x")
    for path in (*paths, "/sessions/none", "/login"):
        await page.goto(path)
        await expect(page.locator("body")).to_be_visible()
        await page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        for width in (400, 320):
            await page.set_viewport_size({"width": width, "height": 740})
            assert await page.evaluate(TOO_WIDE) == [], f"{path} at {width}"
    await page.context.close()
