"""Single calls of a session are cancelled on the page, in a real browser; box, worker and all."""

import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from coordinator.audit import AuditLog
from coordinator.embedded import Embedded
from tests.cluster.test_cancel_calls import Said, until
from tests.coordinator.api.conftest import Serves
from tests.coordinator.page import conftest
from tests.coordinator.page.browsing import DESK, PHONE

pytestmark = [
    pytest.mark.docker,
    pytest.mark.shared_node,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
]
browser = conftest.browser


async def test_a_person_cancels_one_call_and_then_the_rest_of_its_step(
    embedded: Embedded, project: Path, browser: Browser
) -> None:
    model = Said("echo so far; touch begun; sleep 200", "touch later; sleep 200", "touch never", "ls")
    async with AsyncExitStack() as stack:
        serve = Serves(stack, embedded.redis_url, embedded.state_dir)
        served = await serve(model, roots={"project": project})
        body = {"prompt": "x", "workspace": "project", "bind": True, "policy": "boxed"}
        client = served.client()
        session = str((await client.post("/v1/sessions", json=body)).json()["session_id"])
        page = await conftest.open_page(browser, served, viewport=DESK)
        await page.goto(f"/sessions/{session}")
        await until((project / "begun").exists, "the first call runs")

        # One call, in the page that is open: what is asked stays open while the page changes.
        call = page.locator("#call-1-0")
        await call.locator("> summary").click()
        await call.get_by_text("Cancel call…").click()
        await conftest.screenshot(page, "cancel-call-light")
        await page.set_viewport_size(PHONE)
        assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        await conftest.screenshot(page, "cancel-call-phone")
        await page.set_viewport_size(DESK)
        await call.get_by_role("button", name="Cancel the call").click()
        await expect(call.locator("> summary .end")).to_contain_text("CANCELLED")
        await expect(call.get_by_text("Cancel call…")).to_have_count(0)

        # What is left of the step, by keyboard alone.
        await until((project / "later").exists, "the second call runs")
        await page.locator("#cancel-1 > summary").focus()
        await page.keyboard.press("Enter")
        await conftest.screenshot(page, "cancel-step-light")
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("button", name="Cancel the calls")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("#facts .status")).to_have_text("completed")
        await expect(page.get_by_text("Cancel calls…")).to_have_count(0)
        await page.context.close()
    killed, *others = model.answers
    assert (killed["error"]["code"], killed["text"].strip()) == ("CANCELLED", "so far")
    assert [one["error"]["code"] for one in others] == ["CANCELLED"] * 3
    assert not (project / "never").exists()
    lines = [json.loads(line) for line in AuditLog(embedded.state_dir).path.read_text().splitlines()]
    done = [(line["action"], line["session"], line["detail"]) for line in lines if line["via"] == "page"]
    assert done == [("login", "", ""), ("cancel", session, "1.0"), ("cancel", session, "1")]
