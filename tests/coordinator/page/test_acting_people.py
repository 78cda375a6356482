"""The page in a real browser: it obeys who may, and keeps what was done."""

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import redis
from playwright.async_api import Browser, expect

from coordinator.endpoint.scripted import Turn
from tests.coordinator.api.conftest import Serves, prompt
from tests.coordinator.page.browsing import DESK, FIRST, SECOND, ask, node
from tests.coordinator.page.conftest import keep_events, keep_session, open_page, started, visit
from tests.coordinator.page.example import Telling
from worker.contract import keys

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


def actions(state_dir: Path) -> list[tuple[str, str, str]]:
    """What was done on the page, logins apart."""
    lines = [json.loads(line) for line in (state_dir / "audit.jsonl").read_text().splitlines()]
    done = [line for line in lines if line["via"] == "page" and line["action"] != "login"]
    return [(line["action"], line["session"], line["detail"]) for line in done]


async def test_a_person_allows_denies_and_cancels(serve: Serves, browser: Browser) -> None:
    gate = threading.Event()

    def script(messages: list[dict[str, Any]]) -> Turn:
        gate.wait(100)
        return Turn("late")

    served = await serve(script)
    requests = served.sessions.cluster.requests
    client = served.client()
    session_id = (await client.post("/v1/sessions", json=prompt())).json()["session_id"]
    page = await open_page(browser, served, viewport=DESK)
    await page.goto(f"/sessions/{session_id}")
    await expect(page.locator("#said-1")).to_be_attached()
    assert await page.locator(".ask").count() == 0

    # It comes to a page that is open, and what is typed stays.
    await requests.ask(ask(session_id, "rm -r build && \x1b[8mcurl evil", (0, 11)), 600)
    await expect(page.locator(".ask .command")).to_have_text("rm -r build && ␛[8mcurl evil")
    await expect(page.locator(".ask mark")).to_have_text("rm -r build")
    await page.fill(".ask input[name=note]", "not in this repository")
    await requests.ask(ask(session_id, "ls").model_copy(update={"step": 5}), 900)
    await expect(page.locator(".ask")).to_have_count(2)
    assert await page.locator(".ask input[name=note]").first.input_value() == "not in this repository"
    await page.locator(".ask").first.get_by_role("button", name="Deny").click()
    await expect(page.locator(".ask")).to_have_count(1)
    await expect(page.locator("#asking")).to_have_text("1")
    await page.get_by_role("button", name="Always").click()
    await expect(page.locator(".ask")).to_have_count(0)
    await expect(page.locator("#asking")).to_be_hidden()

    denied, allowed = await requests.answer_of(session_id, "4.0"), await requests.answer_of(session_id, "5.0")
    assert denied is not None
    assert allowed is not None
    assert (denied.decision, denied.note, denied.by) == ("deny", "not in this repository", "local on the page")
    assert (allowed.decision, allowed.is_lasting) == ("allow", True)

    # By keyboard alone.
    await page.locator("#cancel summary").focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("button", name="Cancel the session")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("#facts .status")).to_have_text("cancelled")
    gate.set()
    assert actions(serve.state_dir) == [
        ("deny", session_id, "4.0 not in this repository"),
        ("allow", session_id, "5.0 for the whole session"),
        ("cancel", session_id, ""),
    ]


async def test_what_has_no_answer_can_be_cancelled_by_who_may(serve: Serves) -> None:
    told = Telling(FIRST)
    told.reply("Two calls.", [("Bash", '{"command": "make"}'), ("Read", "{}"), ("Task", "{}")])
    told.begin(0, "Bash", "make")
    told.begin(1, "Read", "a.txt")
    told.finish(1, "Read", "one line")
    directory = keep_session(serve.state_dir, FIRST, told.events)
    keep_events(directory / "children" / "1-1-2" / f"{FIRST}.1-1-2.1.jsonl", told.events)
    served = await serve()
    visitor, session = await visit(served), f"/sessions/{FIRST}"
    shown = (await visitor.client.get(session)).text
    assert re.findall(r'action="(.*)"', shown) == [
        "/logout",
        f"{session}/cancel",
        f"{session}/calls/1.0/cancel",
        f"{session}/calls/1.2/cancel",
        f"{session}/steps/1/cancel",
    ]
    below = (await visitor.client.get(f"{session}/agents/1-1-2")).text
    assert "/calls/1.0/cancel" not in below, "a sub-agent is ended by the call that began it"

    other = await visit(served, served.tokens.create("other"))
    for path in ("calls/1.0", "steps/1"):
        assert (await other.post(f"{session}/{path}/cancel")).status_code == 404
        assert (await visitor.client.post(f"{session}/{path}/cancel")).status_code == 403, "no form of ours"
        gone = await visitor.post(f"{session}/{path}/cancel")
        assert gone.status_code == 503, "nobody runs it"
        assert "no coordinator" in gone.text
    for path in ("calls/1", "calls/1.x", "steps/1.0", "steps/-1"):
        assert (await visitor.post(f"{session}/{path}/cancel")).status_code == 422, path
    assert actions(serve.state_dir) == [("cancel", FIRST, "1.0"), ("cancel", FIRST, "1")]
    told.end("failed")
    keep_session(serve.state_dir, SECOND, told.events)
    ended = (await visitor.client.get(f"/sessions/{SECOND}")).text
    assert re.findall(r'action="(.*)"', ended) == ["/logout"], "one that has ended runs nothing"


async def test_all_that_waits_is_on_one_page_the_oldest_first(serve: Serves, browser: Browser) -> None:
    for name in (FIRST, SECOND):
        keep_session(serve.state_dir, name, [(0, started(name))])
    served = await serve()
    requests = served.sessions.cluster.requests
    await requests.ask(ask(SECOND, "git push && \x1b[8mcurl evil", (0, 8)), 900)
    page = await open_page(browser, served, viewport=DESK)
    await expect(page.locator("#asking")).to_have_text("1")
    await page.get_by_role("link", name="Approvals").click()
    asks = page.locator(".ask")
    await expect(asks).to_have_count(1)
    await expect(page.locator(".ask .command")).to_have_text("git push && ␛[8mcurl evil")
    await expect(page.locator(".ask mark")).to_have_text("git push")

    # What comes later stands below, whenever its time is over, also of a sub-agent.
    await page.locator(".ask input[name=note]").fill("not today")
    await requests.ask(ask(f"{FIRST}.1-3-0", "rm -r build", agent="Tidy up"), 600)
    await expect(asks).to_have_count(2)
    await expect(page.locator("#asking")).to_have_text("2")
    await expect(asks.nth(1)).to_contain_text("Tidy up")
    assert await page.locator(".ask input[name=note]").first.input_value() == "not today"
    # One that somebody else has answered stays in its place, so that nothing moves below a hand that is about to click.
    other = await visit(served)
    sent = await other.post(f"/sessions/{SECOND}/approvals/4.0", decision="allow")
    assert sent.headers["location"] == f"/sessions/{SECOND}"
    await expect(asks.nth(0)).to_contain_text("Answered, or its time is over")
    await expect(asks.nth(0).get_by_role("button", name="Deny")).to_be_disabled()
    await expect(page.locator("#asking")).to_have_text("1")

    await asks.nth(1).locator("input[name=note]").fill("leave it")
    await asks.nth(1).get_by_role("button", name="Deny").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("No call waits for an answer.")).to_be_visible()
    assert page.url.endswith("/approvals")
    denied = await requests.answer_of(f"{FIRST}.1-3-0", "4.0")
    assert denied is not None
    assert (denied.decision, denied.note, denied.by) == ("deny", "leave it", "local on the page")
    assert actions(serve.state_dir) == [
        ("allow", SECOND, "4.0"),
        ("deny", FIRST, "1-3-0.4.0 leave it"),
    ]


async def test_an_operator_drains_a_node_and_others_cannot(
    serve: Serves, browser: Browser, redis_client: redis.Redis
) -> None:
    node(redis_client, "node-a.1", places=4, lanes=8)
    served = await serve()
    chief = served.principal("chief", is_operator=True).headers["authorization"].split()[1]
    page = await open_page(browser, served, chief, viewport=DESK)
    await page.get_by_text("Drain…").click()
    await page.get_by_role("button", name="Drain the node").click()
    await expect(page.locator(".status.drained")).to_be_visible()
    assert redis_client.smembers(keys.DRAINED) == {b"node-a.1"}
    await page.get_by_role("button", name="Undo drain").click()
    await expect(page.locator(".status.ready")).to_be_visible()
    assert redis_client.smembers(keys.DRAINED) == set()

    other = await visit(served, served.tokens.create("team-a"))
    assert "Drain" not in (await other.client.get("/fleet")).text
    assert (await other.post("/nodes/node-a.1/drain")).status_code == 403
    assert actions(serve.state_dir) == [("drain", "", "node-a.1"), ("undrain", "", "node-a.1")]
