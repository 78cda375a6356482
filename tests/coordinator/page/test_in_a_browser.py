"""The page in a real browser: it lives, it obeys, it looks right, and nothing that it shows can act."""

import asyncio
import json
import re
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
import redis
from playwright.async_api import Browser, Page, ViewportSize, expect

from coordinator.endpoint.scripted import Turn
from coordinator.service.journal import chain
from coordinator.session.session_events import ChildEnded, ChildStarted
from tests.coordinator.api.conftest import Served, Serves, prompt
from tests.coordinator.page.conftest import keep_events, keep_session, open_page, screenshot, started, visit
from tests.coordinator.page.example import HOSTILE, HOSTILE_TEXT, PATCH, Telling, hostile, ordinary, sub_agent
from worker.contract import keys
from worker.contract.approvals import ApprovalRequest
from worker.contract.orders import NodeLife

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]
expect.set_options(timeout=60_000)
FIRST, SECOND = "20300131-120001-00000001", "20300131-120002-00000002"
DESK: ViewportSize = {"width": 1280, "height": 860}
PHONE: ViewportSize = {"width": 390, "height": 844}
TOO_WIDE = """() => [...document.querySelectorAll('main *, header *')]
    .filter(one => one.getBoundingClientRect().left + one.scrollWidth > window.innerWidth + 1)
    .filter(one => !one.closest('svg, .summary, input, select'))
    .map(one => `${one.tagName}.${one.className} ${one.textContent.slice(0, 60)}`)
    .concat(document.documentElement.scrollWidth > window.innerWidth ? ['the page'] : [])"""
"""What stands beyond the right edge of the window, also where only a part of the page would scroll."""


def node(client: redis.Redis, name: str, *, places: int, lanes: int, used: tuple[int, int] = (0, 0)) -> None:
    """A node that has just renewed its lease, with some of it taken."""
    life = NodeLife(node=name, incarnation=f"{name}-1", places=places, lanes=lanes)
    client.sadd(keys.NODES, name)
    client.set(keys.node(name), life.model_dump_json())
    client.set(keys.lease(name), life.incarnation, px=keys.LEASE_MS * 1_000)
    until_s = time.time() + 600
    for key, count in ((keys.places(name), used[0]), (keys.lanes(name), used[1])):
        if count:
            client.zadd(key, {f"holder-{number}": until_s for number in range(count)})


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


def ask(session: str, text: str, part: tuple[int, int] | None = None, *, agent: str = "") -> ApprovalRequest:
    return ApprovalRequest(
        session=session,
        step=4,
        index=0,
        tool="Bash",
        digest="d",
        text=text,
        reason="it is not known to only read",
        part=part,
        lasting=None if part is None else [text[slice(*part)].split()],
        principal="local",
        agent=agent,
    )


def actions(state_dir: Path) -> list[tuple[str, str, str]]:
    """What was done on the page, logins apart."""
    lines = [json.loads(line) for line in (state_dir / "audit.jsonl").read_text().splitlines()]
    done = [line for line in lines if line["via"] == "page" and line["action"] != "login"]
    return [(line["action"], line["session"], line["detail"]) for line in done]


class Watch:
    """What a page does that it must not."""

    def __init__(self, page: Page, served: Served) -> None:
        self.wrong: list[str] = []
        page.on("dialog", lambda dialog: self.wrong.append(f"dialog {dialog.message}"))
        page.on("pageerror", lambda error: self.wrong.append(f"error {error}"))
        page.on("popup", lambda popup: self.wrong.append(f"popup {popup.url}"))
        page.on("console", lambda said: self.wrong.append(f"console {said.text}"))
        page.context.on(
            "request",
            lambda request: None if request.url.startswith(served.base_url) else self.wrong.append(request.url),
        )


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


async def test_an_open_page_ends_with_its_login(serve: Serves, browser: Browser) -> None:
    keep_session(serve.state_dir, FIRST, [(0, started(FIRST))])
    served = await serve()
    token = served.tokens.create("local")
    page = await open_page(browser, served, token)
    await page.goto(f"/sessions/{FIRST}")

    served.tokens.revoke(token.split("_")[1])

    await page.wait_for_url(re.compile(r"/login\?to="), timeout=60_000)


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
