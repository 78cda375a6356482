"""What the page shows of sessions, and to whom. Without a browser: what is sent is looked at."""

import asyncio
import json
import re
import shutil

import pytest

from coordinator.session.session_events import SessionEnded, SessionResumed
from tests.coordinator.api.conftest import Serves
from tests.coordinator.page.conftest import keep_events, keep_session, started, visit
from tests.coordinator.page.example import HOSTILE, LONG_LINE, PATCH, Telling, hostile, ordinary, sub_agent
from worker.contract.approvals import ApprovalRequest

pytestmark = pytest.mark.asyncio(loop_scope="module")
FIRST, SECOND, THIRD = (f"20300131-12000{number}-0000000{number}" for number in (1, 2, 3))


def ended(status: str = "completed", steps: int = 1) -> SessionEnded:
    return SessionEnded(status=status, stop_reason="why", text="an answer", steps=steps, calls=2 * steps)


async def test_no_principal_sees_anothers_sessions_but_an_operator(serve: Serves) -> None:
    keep_session(serve.state_dir, FIRST, [(0, started(FIRST))], principal="team-a")
    keep_session(serve.state_dir, SECOND, [(0, started(SECOND))], principal="team-b")
    served = await serve()
    served.tokens.create("ops")
    team_a = await visit(served, served.tokens.create("team-a"))
    operator = served.principal("chief", is_operator=True)
    token = operator.headers["authorization"].split()[1]
    chief = await visit(served, token)

    own, all_of_them = (await team_a.client.get("/sessions")).text, (await chief.client.get("/sessions")).text

    assert (FIRST in own, SECOND in own) == (True, False)
    assert (FIRST in all_of_them, SECOND in all_of_them) == (True, True)
    assert SECOND not in (await team_a.client.get("/sessions?principal=team-b")).text
    requests = served.sessions.cluster.requests
    for asker in (FIRST, SECOND, f"{SECOND}.1-2-1"):
        await requests.ask(
            ApprovalRequest(session=asker, step=1, index=0, tool="Bash", digest="d", text=f"of {asker}", reason="w"),
            600,
        )
    (own_asks, every_ask) = (
        (await team_a.client.get("/approvals")).text,
        (await chief.client.get("/approvals")).text,
    )
    assert (own_asks.count('class="ask"'), every_ask.count('class="ask"')) == (1, 3)
    assert (f"of {SECOND}" in own_asks, f"of {SECOND}.1-2-1" in every_ask) == (False, True)
    assert ">1</span></a>" in own_asks
    yes = {"decision": "allow", "agent": "1-2-1"}
    assert (await team_a.post(f"/sessions/{SECOND}/approvals/1.0", **yes)).status_code == 404
    assert (await team_a.client.post(f"/sessions/{FIRST}/approvals/1.0", data=yes)).status_code == 403
    assert await requests.answer_of(f"{SECOND}.1-2-1", "1.0") is None
    assert await requests.answer_of(FIRST, "1.0") is None
    for path in ("", "/stream", "/diff", "/calls/1.0", "/spill/x", "/agents/1-2-1", "/agents/1-2-1/stream"):
        assert (await team_a.client.get(f"/sessions/{SECOND}{path}")).status_code == 404, path
    assert (await team_a.post(f"/sessions/{SECOND}/cancel")).status_code == 404
    assert (await team_a.post(f"/sessions/{SECOND}/approvals/1.0", decision="allow")).status_code == 404


async def test_the_list_is_filtered_and_sorted(serve: Serves) -> None:
    keep_session(serve.state_dir, FIRST, [(0, started(FIRST)), (1, ended(steps=3))], labels={"ticket": "12"})
    keep_session(serve.state_dir, SECOND, [(0, started(SECOND)), (1, ended("failed", 9))], labels={"ticket": "13"})
    keep_session(serve.state_dir, THIRD, [(0, started(THIRD))], labels={"night": "1"})
    client = (await visit(await serve())).client

    async def ids(query: str) -> list[str]:
        return re.findall(r'id="row-([^"]+)"', (await client.get(f"/sessions?{query}")).text)

    assert await ids("") == [THIRD, SECOND, FIRST]
    assert await ids("status=failed") == [SECOND]
    assert await ids("status=live") == [THIRD]
    assert await ids("label=ticket%3D12") == [FIRST]
    assert await ids("label=ticket&up=true") == [FIRST, SECOND]
    assert await ids("text=AN+ANSWER&sort=steps") == [SECOND, FIRST]
    assert await ids("text=00000003") == [THIRD]
    assert "No session fits" in (await client.get("/sessions?text=nothing-like-it")).text
    assert (await client.get("/sessions?sort=evil")).status_code == 422


async def test_a_thousand_sessions_are_listed_from_memory(serve: Serves) -> None:
    for number in range(1_000):
        name = f"20300131-120000-{number:08x}"
        keep_session(serve.state_dir, name, [(0, started(name)), (1, ended(steps=number))])
    served = await serve()
    client = (await visit(served)).client
    assert "1,000 sessions · page 1 of 20" in (await client.get("/sessions")).text

    # Nothing can be read any more.
    shutil.rmtree(serve.state_dir / "sessions")

    page = await client.get("/sessions?page=20&sort=steps&up=true")
    assert "page 20 of 20" in page.text
    assert page.text.count('id="row-') == 50
    assert 'id="row-20300131-120000-000003e7"' in page.text
    assert len(page.content) < 200_000


async def test_the_list_knows_of_an_ended_session_that_another_process_goes_on_with(serve: Serves) -> None:
    directory = keep_session(serve.state_dir, FIRST, [(0, started(FIRST)), (1, ended())])
    served = await serve()
    client = (await visit(served)).client
    assert f'id="row-{FIRST}"' not in (await client.get("/sessions?status=live")).text

    again = SessionResumed(session_id=FIRST, generation=2, previous=1, accepted_bytes=10**6, by="sandhog resume")
    keep_events(directory / f"{FIRST}.2.jsonl", [(2, again)])

    async with asyncio.timeout(60):
        while f'id="row-{FIRST}"' not in (await client.get("/sessions?status=running")).text:
            await asyncio.sleep(0.1)


async def test_answers_outputs_and_patches_are_shown_as_text_alone(serve: Serves) -> None:
    told = ordinary(FIRST)
    told.end(patch="patch.diff")
    directory = keep_session(serve.state_dir, FIRST, told.events)
    (directory / "patch.diff").write_bytes(PATCH)
    (directory / "spill").mkdir()
    (directory / "spill" / "3-0.txt").write_bytes(b"<script>\x1b[2J" + b"x" * 2_000_000)
    (directory / "spill" / "link").symlink_to(serve.state_dir / "audit.jsonl")
    client = (await visit(await serve())).client

    page = (await client.get(f"/sessions/{FIRST}")).text
    answer = await client.get(f"/sessions/{FIRST}/calls/1.1")
    spilled = await client.get(f"/sessions/{FIRST}/spill/3-0.txt")
    diff = (await client.get(f"/sessions/{FIRST}/diff")).text

    assert f"/sessions/{FIRST}/spill/3-0.txt" in page
    assert f"/sessions/{FIRST}/agents/1-2-1" in page
    for plain in (answer, spilled):
        assert plain.headers["content-type"] == "text/plain; charset=utf-8"
        assert "sandbox" in plain.headers["content-security-policy"]
        assert plain.headers["x-content-type-options"] == "nosniff"
    assert "partition" in answer.text
    assert spilled.text.startswith("<script>␛[2J")
    assert len(spilled.content) < 1_100_000
    assert "the first 1,048,576 are shown" in spilled.text
    assert '<pre class="del">-old &lt;b&gt;' in diff
    assert '<pre class="add">+++ new ␛[31m' in diff
    for path in ("/spill/link", "/spill/..%2Frecord.json", "/spill/none", "/calls/9.9", "/agents/9-9-9"):
        assert (await client.get(f"/sessions/{FIRST}{path}")).status_code == 404 or path.startswith("/spill/..")
    assert (await client.get(f"/sessions/{FIRST}/spill/..%2Frecord.json")).status_code in (404, 422)


async def test_a_sub_agent_has_a_page_of_its_own(serve: Serves) -> None:
    directory = keep_session(serve.state_dir, FIRST, ordinary(FIRST).events)
    keep_events(directory / "children" / "1-2-1" / f"{FIRST}.1-2-1.1.jsonl", sub_agent().events)
    client = (await visit(await serve())).client

    page = (await client.get(f"/sessions/{FIRST}/agents/1-2-1")).text
    nested = (await client.get(f"/sessions/{FIRST}")).text

    assert "Nothing else reads them." in page
    assert "Nothing else reads them." in nested
    assert f"/sessions/{FIRST}/agents/1-2-1/calls/1.0" in nested
    assert "one line only" not in nested
    assert (await client.get(f"/sessions/{FIRST}/agents/1-2-1/calls/1.0")).text == "one line only"


async def test_a_long_session_is_shown_in_pages(serve: Serves) -> None:
    told = Telling(FIRST)
    for number in range(400):
        told.reply(f"reply number {number + 1}.", takes_s=0.1)
    keep_session(serve.state_dir, FIRST, told.events)
    client = (await visit(await serve())).client

    newest = (await client.get(f"/sessions/{FIRST}")).text
    earlier = (await client.get(f"/sessions/{FIRST}?before=251")).text

    assert "reply number 400." in newest
    assert "reply number 250." not in newest
    assert f"/sessions/{FIRST}?before=251" in newest
    assert "reply number 250." in earlier
    assert "reply number 251." not in earlier
    assert "data-stream" not in earlier
    assert len(newest) < 400_000


async def test_hostile_text_is_bounded_and_escaped_wherever_it_stands(serve: Serves) -> None:
    keep_session(serve.state_dir, FIRST, hostile(FIRST).events, labels={HOSTILE[0]: HOSTILE[1]})
    client = (await visit(await serve())).client

    for path in (f"/sessions/{FIRST}", "/sessions", "/sessions?text=" + HOSTILE[0], "/login?to=" + HOSTILE[3]):
        page = await client.get(path)
        assert page.status_code == 200
        assert len(page.content) < 1_000_000, path
        lower = page.text.lower()
        assert lower.count("<script") == 1
        assert not any(word in lower for word in ("<img", "<iframe", "<base", "<style", "<svg onload", "<meta http"))
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]", page.text)
    assert LONG_LINE[:30_000] not in page.text


async def test_who_acts_is_written_down(serve: Serves) -> None:
    keep_session(serve.state_dir, FIRST, [(0, started(FIRST))])
    visitor = await visit(await serve())

    gone = await visitor.post(f"/sessions/{FIRST}/approvals/1.0", decision="deny", note="not here")
    odd = await visitor.post(f"/sessions/{FIRST}/approvals/1.0", decision="perhaps")

    assert (gone.status_code, odd.status_code) == (404, 422)
    last = json.loads((serve.state_dir / "audit.jsonl").read_text().splitlines()[-1])
    assert (last["actor"], last["via"], last["action"], last["session"]) == ("local", "page", "deny", FIRST)
    assert last["detail"] == "1.0 not here"
    assert last["address"] == "127.0.0.1"
