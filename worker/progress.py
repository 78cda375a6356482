"""How far a session's start is, said while it waits: images, set-up → **progress** → session's events."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from worker.contract import keys

log = logging.getLogger(__name__)


class Progress:
    """Leaves words for the coordinator of a session that waits for its box. Thread-safe; never raises."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._waiting: dict[str, list[str]] = {}
        self._guard = threading.Lock()

    @contextmanager
    def waits(self, image: str, session: str) -> Iterator[None]:
        """Tell the session meanwhile what is said of the image."""
        with self._guard:
            self._waiting.setdefault(image, []).append(session)
        try:
            yield
        finally:
            with self._guard:
                self._waiting[image].remove(session)
                if not self._waiting[image]:
                    del self._waiting[image]

    def of_image(self, image: str, words: str) -> None:
        """Tell all sessions that wait for the image how far its pull is."""
        with self._guard:
            sessions = list(self._waiting.get(image, ()))
        for session in sessions:
            self.tell(session, f"The image {image} is being pulled: {words}")

    def tell(self, session: str, words: str) -> None:
        """Leave words for the session; they replace those before."""
        try:
            self._redis.set(keys.progress(session), words[: keys.PROGRESS_CHARS], ex=keys.PROGRESS_TTL_S)
        except redis.RedisError as exc:
            log.info("progress was not told", extra={"session_id": session, "error": str(exc)})
