"""The first event of a session's transcript, as tests write it."""

from coordinator.session.session_events import SessionStarted


def started(session_id: str) -> SessionStarted:
    """A session on a private copy under the policy `boxed`."""
    return SessionStarted(
        session_id=session_id,
        prompt="p",
        model="m",
        policy="boxed",
        workspace_mode="copy",
        workspace_reason="",
        workspace="/w",
        image="i",
        max_steps=9,
    )
