"""What tests of the page in a browser share: sessions, sizes of windows, nodes, questions, and a watch on the page."""

import time

import redis
from playwright.async_api import Page, ViewportSize

from tests.coordinator.api.conftest import Served
from worker.contract import keys
from worker.contract.approvals import ApprovalRequest
from worker.contract.orders import NodeLife

FIRST, SECOND = "20300131-120001-00000001", "20300131-120002-00000002"
DESK: ViewportSize = {"width": 1280, "height": 860}
PHONE: ViewportSize = {"width": 390, "height": 844}


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
