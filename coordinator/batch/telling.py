"""Tells somebody that a batch has ended: summary → **telling** → webhooks. Numbers only: never a task's text."""

import json
import secrets
from collections.abc import Collection
from typing import Literal

from pydantic import ValidationError

from coordinator.batch.lines import now
from coordinator.batch.summary import Summary
from coordinator.errors import ConfigError
from coordinator.service.wanted import Webhook
from coordinator.service.webhooks import Webhooks

Outcome = Literal["finished", "stopped", "interrupted", "failed"]
"""Nothing is left; its budget or what is around it stopped it; a signal did; it broke."""

PAUSES_S = (0.0, 2.0, 10.0, 60.0)
"""Before each try: shorter than a server's, for a command waits for the last one."""


class Teller:
    """Who is told of one batch's end.

    Args:
        url: Where to.
        secret: Signs what is sent.
        private_hosts: Names that may stand for private or loopback addresses.
        pauses_s: Before each try.

    Raises:
        ConfigError: the address or the secret cannot be one.
    """

    def __init__(
        self,
        url: str,
        secret: str | None,
        private_hosts: Collection[str] = (),
        *,
        pauses_s: tuple[float, ...] = PAUSES_S,
    ) -> None:
        if not secret:
            raise ConfigError("--webhook: SANDHOG_WEBHOOK_SECRET, 16 characters at least, must sign what is sent.")
        try:
            self._webhook = Webhook(url=url, secret=secret)
        except ValidationError as exc:
            # Without what was given: both may be secrets.
            faults = "; ".join(f"{one['loc'][0]}: {one['msg']}" for one in exc.errors(include_input=False))
            raise ConfigError(f"--webhook: {faults}.") from None
        self.secrets = (url, secret)
        self._webhooks = Webhooks(private_hosts, pauses_s=pauses_s)

    async def check(self) -> None:
        """Return if the address may be told; one that is not known now may be known in the end.

        Raises:
            ConfigError: it is one inside.
        """
        try:
            await self._webhooks.address(self._webhook.url)
        except ValueError as exc:
            raise ConfigError(f"--webhook: {exc}.") from exc
        except OSError:
            pass

    async def tell(self, out: str, outcome: Outcome, summary: Summary, left: int) -> str:
        """Tell of the end; return why nobody could be told, "" where it was heard.

        Args:
            out: Name of the batch's directory.
            outcome: How it ended.
            summary: What it came to.
            left: Runs that have no line.
        """
        batch = {"out": out, "outcome": outcome, "left": left, "ended_at": now(), **summary.as_json()}
        body = json.dumps({"event": "batch_ended", "batch": batch}).encode()
        return (await self._webhooks.deliver(self._webhook, body, f"batch-{secrets.token_hex(8)}")).error
