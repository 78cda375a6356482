"""Calls that were not allowed have their line in the audit log: runner → **denials** → audit."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from coordinator.audit import AuditLog
from coordinator.errors import TranscriptError
from coordinator.service.entries import Entry
from coordinator.session.call_events import CallFinished
from coordinator.session.events import ChildEvent, Event, EventSink
from tools.base import ErrorCode

log = logging.getLogger(__name__)


def denials_to(audit: AuditLog) -> Callable[[Entry], EventSink]:
    """Return what gives each session a sink that notes its denied calls; it never blocks the session."""
    writer = ThreadPoolExecutor(1, thread_name_prefix="audit")

    def watch(entry: Entry) -> EventSink:
        def take(event: Event) -> None:
            child = ""
            while isinstance(event, ChildEvent):
                child, event = f"{event.child}: ", event.event
            if isinstance(event, CallFinished) and event.error_code == ErrorCode.PERMISSION_DENIED:
                detail = f"{child}step {event.step}, call {event.index}: {event.tool} {event.summary}"
                writer.submit(partial(_note, audit, entry, detail))

        return take

    return watch


def _note(audit: AuditLog, entry: Entry, detail: str) -> None:
    try:
        audit.write(
            "call_denied",
            actor=entry.record.principal,
            address="",
            via="session",
            session=entry.session_id,
            detail=detail,
        )
    except TranscriptError as exc:
        log.error("a denied call was not noted", extra={"session_id": entry.session_id, "error": str(exc)})
