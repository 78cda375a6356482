"""The instructions that a repository has for agents: prepare → **project_notes** → the coordinator's prompt.

Read through the box, as a tool would read them: whatever the workspace holds (links, devices, pipes) is the box's own.
"""

import logging

from sandbox.box import Box
from sandbox.errors import SandboxError
from sandbox.requests import CallMark, ReadRequest
from sandbox.wire import WORKSPACE
from worker.contract.orders import BoxOrder, ProjectNotes

log = logging.getLogger(__name__)

FILE = f"{WORKSPACE}/AGENTS.md"
MAX_BYTES = 16 * 1024
MAX_LINES = 4_000


def project_notes(box: Box, order: BoxOrder) -> ProjectNotes | None:
    """Return what the workspace's root has for agents, its beginning where it is long; None for nothing that is text.

    What goes wrong with it is no reason for a session not to begin: a box that is lost shows with the first call.
    """
    mark = CallMark(
        key=f"{order.session}/{order.generation}/notes",
        digest="",
        session=order.session,
        generation=order.generation,
        step=0,
    )
    try:
        answer = box.read(ReadRequest(mark, FILE, limit=MAX_LINES, max_bytes=MAX_BYTES))
    except SandboxError as exc:
        log.info("no project notes", extra={"session_id": order.session, "reason": str(exc)})
        return None
    # A link may lead anywhere in the box, to the environment of a process too: only the repository's own text counts.
    if not answer.path.startswith(f"{WORKSPACE}/") or not answer.text:
        return None
    return ProjectNotes(text=answer.text.decode("utf-8", "replace"), total_bytes=answer.version.size)
