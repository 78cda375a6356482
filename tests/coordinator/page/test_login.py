"""Who may look at the page, and how the page keeps others out."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from coordinator.page.login import LASTS_S, Logins, Patience
from coordinator.service.tokens import Tokens
from tests.coordinator.api.conftest import FIRST_TOKEN, Serves
from tests.coordinator.page.conftest import csrf_in, keep_session, started, visit

pytestmark = pytest.mark.asyncio(loop_scope="module")
SESSION = "20300131-120000-00000001"
PATHS = (
    "/fleet",
    "/sessions",
    "/approvals",
    f"/sessions/{SESSION}",
    f"/sessions/{SESSION}/stream",
    f"/sessions/{SESSION}/diff",
)


async def test_nobody_sees_anything_without_a_login(serve: Serves) -> None:
    keep_session(serve.state_dir, SESSION, [(0, started(SESSION, "a secret prompt"))])
    served = await serve()
    stranger = served.client()

    for path in PATHS:
        answer = await stranger.get(path)
        assert answer.status_code == 303, path
        assert answer.headers["location"].startswith("/login?to=%2F"), path
        assert "secret prompt" not in answer.text
    assert (await stranger.get("/fleet", headers={"X-Fragment": "1"})).status_code == 401
    assert (await stranger.post(f"/sessions/{SESSION}/cancel")).status_code == 303


async def test_a_login_has_a_hardened_cookie_and_ends_by_logging_out(serve: Serves) -> None:
    served = await serve()
    client = served.client(None)
    csrf = csrf_in((await client.get("/login?to=/sessions%3Fstatus%3Dfailed")).text)

    answer = await client.post("/login", data={"token": FIRST_TOKEN, "csrf": csrf, "to": "/sessions?status=failed"})

    assert answer.headers["location"] == "/sessions?status=failed"
    cookie = next(one for one in answer.headers.get_list("set-cookie") if one.startswith("sandhog-login="))
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    secret = cookie.split("=")[1].split(";")[0]
    kept = b"".join(path.read_bytes() for path in (serve.state_dir / "logins").iterdir())
    assert secret.encode() not in kept
    assert FIRST_TOKEN.encode() not in kept

    own = csrf_in((await client.get("/fleet")).text)
    assert (await client.post("/logout", data={"csrf": own})).status_code == 303
    with_old = served.client(None)
    with_old.cookies.set("sandhog-login", secret)
    assert (await with_old.get("/fleet")).status_code == 303
    actions = [json.loads(line)["action"] for line in (serve.state_dir / "audit.jsonl").read_text().splitlines()]
    assert actions == ["login", "logout"]


async def test_over_tls_the_cookie_is_for_this_host_and_tls_alone(serve: Serves) -> None:
    served = await serve()
    client = served.client(None)
    by_proxy = {"X-Forwarded-Proto": "https"}

    asked = await client.get("/login", headers=by_proxy)

    cookie = asked.headers["set-cookie"]
    assert cookie.startswith("__Host-sandhog-asked=")
    assert "Secure" in cookie


@pytest.mark.parametrize("to", ["https://evil.example/fleet", "//evil.example", "/\\evil.example", "/fleet\\..", "/v1"])
async def test_a_login_leads_nowhere_else(serve: Serves, to: str) -> None:
    served = await serve()
    client = served.client(None)
    csrf = csrf_in((await client.get("/login")).text)

    answer = await client.post("/login", data={"token": FIRST_TOKEN, "csrf": csrf, "to": to})

    assert answer.headers["location"] == "/fleet"


async def test_a_login_ends_with_its_token(serve: Serves) -> None:
    served = await serve()
    token = served.tokens.create("team-a")
    visitor = await visit(served, token)
    assert (await visitor.client.get("/sessions")).status_code == 200

    served.tokens.revoke(token.split("_")[1])

    assert (await visitor.client.get("/sessions")).status_code == 303


async def test_a_login_ends_in_time(tmp_path: Path) -> None:
    now = 1_000_000.0
    logins = Logins(tmp_path, Tokens(tmp_path, FIRST_TOKEN), lambda: now)
    begun = logins.begin(FIRST_TOKEN)
    assert begun is not None
    assert logins.visitor(begun[0]) is not None

    now += LASTS_S + 1

    assert logins.visitor(begun[0]) is None
    assert logins.visitor("") is None
    assert logins.visitor("../../principals.json") is None


async def test_forms_of_other_sites_do_nothing(serve: Serves) -> None:
    keep_session(serve.state_dir, SESSION, [(0, started(SESSION))])
    served = await serve()
    visitor = await visit(served)
    path, good = f"/sessions/{SESSION}/cancel", {"csrf": visitor.csrf}

    answers = [
        await visitor.client.post(path),
        await visitor.client.post(path, data={"csrf": "0" * 64}),
        await visitor.client.post(path, data=good, headers={"Origin": "https://evil.example"}),
        await visitor.client.post(path, data=good, headers={"Origin": "null"}),
        await visitor.client.post(path, data=good, headers={"Sec-Fetch-Site": "same-site"}),
        await visitor.client.post("/login", data={"token": FIRST_TOKEN, **good}),
    ]

    assert [answer.status_code for answer in answers] == [403] * 6
    assert "cancel" not in (serve.state_dir / "audit.jsonl").read_text()


async def test_wrong_tokens_are_listened_to_for_a_while_only(serve: Serves) -> None:
    served = await serve()
    client = served.client(None)
    csrf = csrf_in((await client.get("/login")).text)
    statuses = []
    for number in range(11):
        answer = await client.post("/login", data={"token": f"guess {number}", "csrf": csrf})
        statuses.append(answer.status_code)

    right = await client.post("/login", data={"token": FIRST_TOKEN, "csrf": csrf})

    assert statuses == [401] * 10 + [429]
    assert right.status_code == 429
    assert int(right.headers["retry-after"]) > 0
    assert "guess" not in (serve.state_dir / "audit.jsonl").read_text()


async def test_patience_comes_back_and_others_are_not_shut_out() -> None:
    now = 0.0
    patience = Patience(lambda: now)
    for _ in range(10):
        patience.failed("a")

    assert patience.wait_s("a") == 60
    assert patience.wait_s("b") == 0
    now += timedelta(minutes=1).total_seconds()
    assert patience.wait_s("a") == 0


async def test_every_answer_has_the_strict_headers(serve: Serves) -> None:
    keep_session(serve.state_dir, SESSION, [(0, started(SESSION))])
    served = await serve()
    client = (await visit(served)).client

    for path in ("/login", *PATHS[:4], "/sessions/none", "/static/page.js", "/sessions?page=x"):
        answer = await client.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy, path
        assert "unsafe" not in policy
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        if not path.startswith("/static"):
            assert answer.headers["cache-control"] == "no-store"
        assert not any(word in answer.text for word in ("<script>", "style=", "onclick", "javascript:"))
