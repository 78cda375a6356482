"""One box as the rooms above see it (skeleton: the methods and types stand, bodies follow)."""

from collections.abc import Callable

from sandbox.requests import (
    EditAnswer,
    EditRequest,
    GuestInfo,
    ReadAnswer,
    ReadRequest,
    RunAnswer,
    RunRequest,
    StatAnswer,
    WriteAnswer,
    WriteRequest,
)


class Box:
    """A running container and its guest. Thread-safe; many requests may be under way at once."""

    box_id: str
    info: GuestInfo

    def run(self, request: RunRequest, on_output: Callable[[bytes], None] | None = None) -> RunAnswer:
        """How the command ended."""
        raise NotImplementedError

    def read(self, request: ReadRequest) -> ReadAnswer:
        """Lines of a file."""
        raise NotImplementedError

    def edit(self, request: EditRequest) -> EditAnswer:
        """What the edit did."""
        raise NotImplementedError

    def write(self, request: WriteRequest) -> WriteAnswer:
        """What the write did."""
        raise NotImplementedError

    def stat(self, session: str, path: str) -> StatAnswer:
        """What lies at a path (relative to the session's cwd)."""
        raise NotImplementedError

    def begin_step(self, session: str, generation: int, step: int) -> None:
        """The answers of earlier steps of the session may be dropped."""
        raise NotImplementedError

    def cancel(self, key: str) -> bool:
        """True when a running call or its leftovers were being ended."""
        raise NotImplementedError

    def freeze(self) -> None:
        """Stop all commands."""
        raise NotImplementedError

    def thaw(self) -> None:
        """Let all commands go on."""
        raise NotImplementedError

    def is_alive(self) -> bool:
        """True while the container runs."""
        raise NotImplementedError

    def close(self) -> None:
        """End and remove the container."""
        raise NotImplementedError
