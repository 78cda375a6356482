"""The worker's one wiring place: settings in, a running node out."""

import contextlib
import logging
import os
import shutil
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from celery.signals import worker_ready, worker_shutting_down
from redis.backoff import NoBackoff
from redis.retry import Retry

from sandbox.errors import SandboxError
from tools.loading import LoadedTools, ToolsUnusable, load_tools
from worker import tasks
from worker.anew import Anew
from worker.app import create_app
from worker.boxes import Boxes
from worker.calls import CallEnd, Calls
from worker.channels.doors import Doors
from worker.contract import keys
from worker.contract.orders import NodeLife
from worker.contract.volume import volume_id
from worker.errors import NodeMisconfigured
from worker.gates.breaker import BreakerGate
from worker.gates.gate import in_row
from worker.gates.lane import LaneGate
from worker.gates.lock import LockGate, ReadMetadata
from worker.gates.permission import PermissionGate
from worker.gates.run import RunGate
from worker.machine import Machine, build
from worker.marking import Marking
from worker.mcp.entry import Mcp
from worker.node import Lease, is_owner_gone, watch_owner
from worker.observed import canary_of, scraped
from worker.own_secrets import Secrets
from worker.own_tools import OwnTools
from worker.settings import NodeSettings
from worker.spill import Spills
from worker.standing import Owners
from worker.versions import versions

log = logging.getLogger(__name__)

REDIS_WAIT_S = 15.0
OWNER_END_S = 10.0

SPARE_THREADS = 2 * keys.ERRANDS + 8
"""Threads beside the lanes, for errands and joins: neither they nor calls must wait behind the other."""


def connect(redis_url: str) -> redis.Redis:
    """Return a client that never repeats a command by itself: a repeated claim or append would lie."""
    return redis.Redis.from_url(redis_url, retry=Retry(NoBackoff(), 0), socket_timeout=5, health_check_interval=10)


def run_node(settings: NodeSettings) -> None:
    """Run a node until its owner ends or a signal comes; its boxes end with it.

    Raises:
        NodeMisconfigured: Redis, the engine, the volume or the own tools cannot be used; the message says what to do.
    """
    client = connect(settings.redis_url)
    end = _End(client, settings.run_dir if settings.owner_fd is not None else None)
    if settings.owner_fd is None:
        _run_to_end(settings, client, end)
        return
    # Before anything that may take long or fail: nobody else ends the owner's Redis once the owner is gone.
    watcher = watch_owner(settings.owner_fd, end.by_owner)
    try:
        _run_to_end(settings, client, end)
    except NodeMisconfigured:
        if is_owner_gone(settings.owner_fd):
            watcher.join(OWNER_END_S)
        raise


def _run_to_end(settings: NodeSettings, client: redis.Redis, end: "_End") -> None:
    loaded = _load_tools(settings)
    _reach_redis(client)
    machine = build(settings, client)
    boxes = machine.boxes
    life, own = _life(settings, machine, loaded), _own_tools(settings, loaded)
    lease = _lease(settings, client, machine, life, lambda: canary.is_well)
    lanes = LaneGate(settings.lane_count, lambda: anew.begin())
    anew = Anew(lease.drain, lambda: lanes.running, own.close)
    mcp = Mcp(boxes, settings.scratch_dir, deny=settings.egress_deny)
    app, threads = create_app(settings.redis_url), settings.lane_count + SPARE_THREADS
    canary = canary_of(settings, app, client, threads, anew.begin)
    told = scraped(
        settings,
        boxes=boxes,
        lanes=lanes,
        lease=lease,
        canary=canary,
        has_tool=lambda name: own.registry.get(name) is not None,
    )
    calls = _calls(settings, client, boxes, own, mcp, lanes, life.incarnation, told.ended)
    owners = Owners(client, settings.node)
    tasks.register(app, calls, boxes, mcp, owners, canary.arrive, lambda: lease.is_draining)
    worker = _celery_worker(app, settings.node, threads)
    _adopt(boxes)
    end.takes(boxes, own, mcp)
    lease.start()
    doors = Doors(client, settings.node, boxes.running_box)
    doors.start()
    mark = Marking(client, settings.state_dir, settings.node, life.incarnation) if settings.owner_fd is None else None
    _keep_up(machine, lanes, lease, mark)
    canary.start()
    # An owned node's boxes are its owner's to end.
    hand_over = (lambda: anew.hand_over(lease.stop)) if settings.owner_fd is None else None
    try:
        with _heard_signals(canary.stop, lease.drain, hand_over):
            worker.start()
    finally:
        told.close()
        doors.close()
        canary.close()
        machine.upkeep.close()
        try:
            end.close()
        finally:
            # Last: sessions of a node that has left may have boxes elsewhere, on the same workspaces.
            lease.close()


def _lease(
    settings: NodeSettings, client: redis.Redis, machine: Machine, life: NodeLife, is_well: Callable[[], bool]
) -> Lease:
    def show_alive() -> None:
        if settings.alive_file is not None and is_well():
            settings.alive_file.touch()

    return Lease(
        client,
        life,
        on_lapse=machine.on_lapse,
        on_return=machine.on_return,
        on_renewed=show_alive,
        on_drained=machine.boxes.drain,
        on_lost=machine.boxes.keep_places,
    )


def _adopt(boxes: Boxes) -> None:
    adopted = boxes.adopt()
    if adopted:
        log.info("boxes adopted", extra={"sessions": adopted})


def _keep_up(machine: Machine, lanes: LaneGate, lease: Lease, mark: Marking | None) -> None:
    if mark is not None:
        machine.upkeep.add("mark", mark.write)
    machine.upkeep.add("lanes", lanes.look)
    machine.upkeep.add("facts", lambda: lease.describe(**machine.facts()))
    machine.upkeep.start()


@contextlib.contextmanager
def _heard_signals(
    stop_canary: Callable[[], None], drain: Callable[[], object], hand_over: Callable[[], None] | None
) -> Iterator[None]:
    """While the block runs, SIGTERM drains the node, and SIGHUP hands its boxes over where that is given."""

    def begin_drain(**_: object) -> None:
        # Nothing is read from the queue any more.
        stop_canary()
        # In a thread: this is called from a signal's handler, which must not wait for Redis.
        threading.Thread(target=drain, name="drain", daemon=True).start()

    def take_hang_up(**_: object) -> None:
        # Celery has put its own handlers by then.
        if hand_over is not None:
            signal.signal(signal.SIGHUP, lambda *_: hand_over())

    worker_shutting_down.connect(begin_drain, weak=False)
    worker_ready.connect(take_hang_up, weak=False)
    try:
        yield
    finally:
        worker_ready.disconnect(take_hang_up)
        worker_shutting_down.disconnect(begin_drain)


def _life(settings: NodeSettings, machine: Machine, loaded: LoadedTools) -> NodeLife:
    return NodeLife(
        node=settings.node,
        incarnation=f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        places=settings.places,
        lanes=settings.lane_count,
        pid=os.getpid(),
        freeze_s=settings.freeze_s,
        volume=_volume(settings),
        **_first_facts(machine),
        tools=loaded.digest,
        versions=versions(),
    )


def _volume(settings: NodeSettings) -> str:
    try:
        return volume_id(settings.state_dir)
    except (OSError, ValueError) as exc:
        raise NodeMisconfigured(f"The volume at {settings.state_dir} cannot be used: {exc}") from exc


def _first_facts(machine: Machine) -> dict[str, Any]:
    try:
        return machine.facts()
    except (SandboxError, OSError) as exc:
        raise NodeMisconfigured(str(exc)) from exc


def _load_tools(settings: NodeSettings) -> LoadedTools:
    try:
        return load_tools(settings.tool_paths)
    except ToolsUnusable as exc:
        raise NodeMisconfigured(f"The tools of SANDHOG_TOOLS cannot be loaded: {exc}") from exc


def _own_tools(settings: NodeSettings, loaded: LoadedTools) -> OwnTools:
    own = OwnTools(loaded, Secrets(settings.secrets_dir), settings.scratch_dir, limits=settings.own_limits)
    try:
        own.sweep()
    except OSError as exc:
        raise NodeMisconfigured(f"{settings.scratch_dir} cannot be cleared: {exc}") from exc
    return own


def _calls(
    settings: NodeSettings,
    client: redis.Redis,
    boxes: Boxes,
    own: OwnTools,
    mcp: Mcp,
    lanes: LaneGate,
    incarnation: str,
    on_end: Callable[[CallEnd], None],
) -> Calls:
    seen = ReadMetadata(client)
    breaker = BreakerGate(client, settings.node, settings.breaker)
    return Calls(
        client=client,
        registry=own.registry,
        boxes=boxes,
        own=own,
        mcp=mcp,
        gates=in_row([PermissionGate(client), LockGate(seen), breaker, lanes], RunGate(boxes, own, mcp)),
        spills=Spills(settings.spill_bounds),
        incarnation=incarnation,
        on_cut=seen.narrow,
        on_end=on_end,
    )


def _celery_worker(app: Celery, node: str, threads: int) -> Any:
    return app.Worker(
        hostname=keys.hostname(node),
        pool="threads",
        concurrency=threads,
        queues=[keys.queue(node)],
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        loglevel="WARNING",
        quiet=True,
    )


class _End:
    """Closes what the node owns exactly once, whoever asks first: the owner's watcher or the main thread."""

    def __init__(self, client: redis.Redis, run_dir: Path | None) -> None:
        self._boxes: Boxes | None = None
        self._own: OwnTools | None = None
        self._mcp: Mcp | None = None
        self._redis = client
        self._run_dir = run_dir
        self._once = threading.Lock()
        self._closed = False

    def takes(self, boxes: Boxes, own: OwnTools, mcp: Mcp) -> None:
        """Close these at the end, or now if that has come already."""
        with self._once:
            self._boxes, self._own, self._mcp = boxes, own, mcp
            if self._closed:
                self._close()

    def by_owner(self) -> None:
        """Close everything at once, also under running calls: nobody is left to want their answers."""
        try:
            self.close()
        finally:
            if self._run_dir is not None:
                # Redis and the directory were the owner's; nobody else is left to end them.
                try:
                    self._redis.shutdown(nosave=True)
                    shutil.rmtree(self._run_dir, ignore_errors=True)
                except redis.ConnectionError as exc:
                    log.info("Redis was gone already", extra={"error": str(exc)})
                    shutil.rmtree(self._run_dir, ignore_errors=True)
                except redis.RedisError as exc:
                    # The next command's sweep ends it, by what the directory says of it.
                    log.error("Redis does not end", extra={"error": str(exc)})
                # Nothing is left to end, and Celery would look for its broker for another second.
                os._exit(0)
            os.kill(os.getpid(), signal.SIGTERM)

    def close(self) -> None:
        """End the calls of own tools, and the boxes."""
        with self._once:
            if not self._closed:
                self._closed = True
                self._close()

    def _close(self) -> None:
        try:
            if self._mcp is not None:
                self._mcp.close()
        except (OSError, TimeoutError, RuntimeError) as exc:
            log.warning("an MCP server was left", extra={"error": str(exc)})
        try:
            if self._own is not None:
                self._own.close()
        except OSError as exc:
            log.warning("the own tools' directory was left", extra={"error": str(exc)})
        if self._boxes is not None:
            self._boxes.close()


def _reach_redis(client: redis.Redis) -> None:
    """Come back when Redis answers; one that is just starting is waited for."""
    deadline = time.monotonic() + REDIS_WAIT_S
    while True:
        try:
            client.ping()
            return
        except redis.RedisError as exc:
            # What it refuses now, such as for want of room on its disk, it refuses in a moment too.
            if isinstance(exc, redis.ResponseError) or time.monotonic() > deadline:
                words = f"Redis at SANDHOG_REDIS_URL does not answer: {exc}. Start it or correct the URL."
                raise NodeMisconfigured(words) from exc
            time.sleep(0.02)
