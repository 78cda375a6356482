"""The Celery app of a process: made by each of the two wiring places, a global of neither.

The coordinator sends signatures by name through it; only a node gives it bodies (`worker.tasks`).
"""

from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from kombu.connection import Connection, ConnectionPool, PooledConnection

from worker.contract import keys
from worker.queues import Transport

SENDERS = 4
"""Threads of a coordinator that send."""
BROKER_CONNECTIONS = 2 * SENDERS
"""Whoever sends a control command holds one connection and takes a second: with fewer, as many at once as there are
would each wait for the others for ever."""
SILENT_S = 5.0
"""A connection that says nothing for so long is given up."""
BACKEND = "worker.contract.replies.ReplyStreamBackend"


RECONNECT = {"interval_start": 0.2, "interval_step": 0.2, "interval_max": 1.0}
"""Pauses between attempts to reach a Redis that is away, in seconds."""


class _EagerConnection(Connection):
    """Is back within a second of its broker; kombu's own pauses grow to half a minute."""

    def ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        return super().ensure_connection(*args, **{**RECONNECT, **kwargs})  # type: ignore[no-untyped-call]

    def get_transport_cls(self) -> type[Transport]:
        return Transport

    def Pool(self, limit: int | None = None, **_: Any) -> ConnectionPool:
        return _Pool(self, limit)  # type: ignore[no-untyped-call]


class _Pooled(PooledConnection):
    def get_transport_cls(self) -> type[Transport]:
        return Transport


class _Pool(ConnectionPool):
    def new(self) -> _Pooled:
        return _Pooled(self, **dict(self.connection._info(resolve=False)))  # type: ignore[no-untyped-call]


class _EagerAMQP(AMQP):  # type: ignore[misc]
    Connection = _EagerConnection


def backend_url(redis_url: str) -> str:
    """Return the result backend's URL for a Redis URL (`redis://`, `rediss://` or `unix:///path`).

    Celery takes no `rediss://` without a word on certificates; it gets the one that everybody else assumes.
    """
    if redis_url.startswith("rediss://") and "ssl_cert_reqs=" not in redis_url:
        redis_url += ("&" if "?" in redis_url else "?") + "ssl_cert_reqs=required"
    return f"{BACKEND}+{_celery_form(redis_url, 'socket')}"


def broker_url(redis_url: str) -> str:
    """Return the broker's URL for a Redis URL (`redis://`, `rediss://` or `unix:///path`)."""
    return _celery_form(redis_url, "redis+socket")


def _celery_form(redis_url: str, socket_scheme: str) -> str:
    return redis_url.replace("unix://", f"{socket_scheme}://", 1) if redis_url.startswith("unix://") else redis_url


def create_app(redis_url: str) -> Celery:
    """Return an app on that Redis: JSON only, no acknowledgement emulation, no publish retry, no per-task result keys.

    Nothing here makes a call run at most once by itself: the claim at the start of each body does.
    """
    app = Celery("sandhog", set_as_current=False, amqp=_EagerAMQP)
    app.conf.update(
        broker_url=broker_url(redis_url),
        result_backend=backend_url(redis_url),
        result_backend_thread_safe=True,
        # An outcome waits for a Redis that is away as long as an outage is tolerated (retries back off to 1 s).
        result_backend_always_retry=True,
        result_backend_max_retries=keys.OUTAGE_S,
        result_backend_base_sleep_between_retries_ms=50,
        result_backend_max_sleep_between_retries_ms=1_000,
        task_serializer="json",
        result_serializer="json",
        accept_content=["json"],
        result_accept_content=["json"],
        # A lost reply to LPUSH must not send a call twice: an uncertain publish is settled by fence and join.
        task_publish_retry=False,
        task_acks_late=False,
        task_reject_on_worker_lost=False,
        task_retry_on_worker_lost=False,
        task_track_started=False,
        task_send_sent_event=False,
        worker_send_task_events=False,
        worker_prefetch_multiplier=1,
        worker_disable_rate_limits=True,
        worker_redirect_stdouts=False,
        worker_hijack_root_logger=False,
        worker_soft_shutdown_timeout=10.0,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_pool_limit=BROKER_CONNECTIONS,
        # Plain BRPOP: no unacked hash, so no redelivery, and half a millisecond less a call.
        broker_transport_options={
            "ack_emulation": False,
            "priority_steps": [0],
            "socket_keepalive": True,
            **RECONNECT,
            # Longer than the one second that BRPOP blocks: a Redis that went away without a word holds up nobody.
            "socket_timeout": SILENT_S,
            "socket_connect_timeout": SILENT_S,
            # No such limit ends the wait of a node's reader: it is looked so often whether an answer is overdue.
            "health_check_interval": SILENT_S,
        },
        redis_socket_timeout=SILENT_S,
        redis_socket_connect_timeout=SILENT_S,
    )
    return app
