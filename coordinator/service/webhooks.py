"""Tell others that a session or a batch has ended: floor, batch → **webhooks** → their server.

At least once: what was not confirmed is sent again, also by the next process. The address is looked up here and
judged, and what was judged is connected to.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit, urlunsplit

import httpx2

from coordinator.ending import end
from coordinator.service.entries import Entry
from coordinator.service.records import replace_file
from coordinator.service.views import view_of
from coordinator.service.wanted import Webhook

log = logging.getLogger(__name__)

PAUSES_S = (0.0, 2.0, 10.0, 60.0, 300.0, 1_800.0, 7_200.0)
"""Before each try; behind the last one it is given up."""
TIMEOUT_S = 10.0
AT_ONCE = 20
LATEST = timedelta(hours=24)
"""Of a session that ended longer ago nobody is told any more."""
MARKER = "webhook.json"
"""In the session's directory, once its webhook was told or given up."""


@dataclass(frozen=True)
class Delivery:
    """What came of telling somebody."""

    tries: int
    error: str
    """Why the last try did not reach them; "" where it did."""


class Webhooks:
    """Delivers for one process. Use `async with`: what is not delivered at its end is left for the next process.

    Args:
        private_hosts: Names that may stand for private or loopback addresses.
        sleep: Waits for seconds.
        pauses_s: Before each try.
    """

    def __init__(
        self,
        private_hosts: Collection[str] = (),
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        pauses_s: tuple[float, ...] = PAUSES_S,
    ) -> None:
        self._private_hosts = frozenset(private_hosts)
        self._sleep = sleep
        self._pauses_s = pauses_s
        self._room = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Webhooks":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await end(*self._tasks)

    def tell(self, entry: Entry) -> None:
        """Let a session's webhook be told, if it has one, has ended, and was not told before."""
        webhook = entry.record.webhook
        if webhook is None or not entry.facts.has_ended or (entry.directory / MARKER).exists():
            return
        moment = view_of(entry).ended_at
        if moment is not None and datetime.now(UTC) - moment > LATEST:
            return
        task = asyncio.create_task(self._deliver(entry, webhook), name=f"webhook {entry.session_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, entry: Entry, webhook: Webhook) -> None:
        body = json.dumps({"event": "session_ended", "session": view_of(entry).model_dump(mode="json")}).encode()
        done = await self.deliver(webhook, body, f"{entry.session_id}/{entry.facts.ended_at}")
        if done.error:
            log.warning("webhook of %s is given up: %s", entry.session_id, done.error)
        marker = json.dumps({"told": not done.error, "tries": done.tries, "error": done.error}).encode()
        try:
            await asyncio.to_thread(replace_file, entry.directory / MARKER, marker)
        except OSError as exc:
            log.warning("webhook of %s: that it was told cannot be kept: %s", entry.session_id, exc)

    async def deliver(self, webhook: Webhook, body: bytes, name: str) -> Delivery:
        """Send a body, signed, until it is confirmed or given up.

        Args:
            webhook: Where to, and what signs it.
            body: JSON.
            name: The same at each try and no other delivery's, so that who is told twice can know it.
        """
        said = ""
        for number, pause_s in enumerate(self._pauses_s, start=1):
            await self._sleep(pause_s)
            async with self._room:
                said = await self._try(webhook, body, name)
            if not said:
                break
            log.info("webhook of %s, try %d: %s", name, number, said)
        return Delivery(number, said)

    async def _try(self, webhook: Webhook, body: bytes, delivery: str) -> str:
        """Return why the webhook could not be told; "" when it was."""
        try:
            address = await self.address(webhook.url)
        except (OSError, ValueError) as exc:
            return f"its address cannot be used: {exc}"
        parts = urlsplit(webhook.url)
        host = f"[{address}]" if ":" in address else address
        target = urlunsplit((parts.scheme, f"{host}:{_port(webhook.url)}", parts.path or "/", parts.query, ""))
        headers = {
            "Host": parts.netloc.rpartition("@")[2],
            "Content-Type": "application/json",
            "User-Agent": "sandhog",
            "Sandhog-Delivery": delivery,
            "Sandhog-Signature": signature(webhook.secret or "", body, int(time.time())),
        }
        try:
            async with asyncio.timeout(TIMEOUT_S), httpx2.AsyncClient(trust_env=False, timeout=TIMEOUT_S) as client:
                request = client.build_request(
                    "POST",
                    target,
                    content=body,
                    headers=headers,
                    # The certificate is that of the name, whatever the address.
                    extensions={"sni_hostname": parts.hostname},
                )
                # What it answers beyond the status is not read.
                response = await client.send(request, stream=True, follow_redirects=False)
                status = response.status_code
                await response.aclose()
        except (httpx2.HTTPError, TimeoutError, OSError) as exc:
            return f"it does not answer: {exc or type(exc).__name__}"
        return "" if 200 <= status < 300 else f"it answered {status}"

    async def address(self, url: str) -> str:
        """Return the address to connect to.

        Raises:
            ValueError: it is one inside.
            OSError: the name is not known.
        """
        name = urlsplit(url).hostname or ""
        found = await asyncio.get_running_loop().getaddrinfo(name, _port(url), type=socket.SOCK_STREAM)
        addresses = [str(one[4][0]) for one in found]
        barred = [address for address in addresses if not is_public(address)]
        if barred and name not in self._private_hosts:
            raise ValueError(f"{name} is {barred[0]}, an address inside (SANDHOG_WEBHOOK_PRIVATE allows names)")
        return addresses[0]


def signature(secret: str, body: bytes, moment: int) -> str:
    """Return the value of `Sandhog-Signature`: the time, and the HMAC-SHA256 of time, a dot, and the body."""
    digest = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={digest}"


def is_public(text: str) -> bool:
    """Return whether an address is one of the internet's, also behind those that stand for IPv4 ones."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in ipaddress.IPv6Network("64:ff9b::/96"):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(str(inner))
    return address.is_global and not address.is_multicast


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)
