"""The worker room's errors.

WorkerError
├── WorkspaceRefused   the session's workspace cannot be used: ends the session, nothing ran
│   └── SourceUnfit    what it is to be made from is not there, or is broken: no other try or node has it
├── ResultFailed       what a private copy became cannot be read, kept or applied: nothing was lost, try again
├── BoxUnavailable     no box can be had for the session: ends the session, nothing ran
│   └── NoPlace        the node is full: nothing ran, and nothing is wrong with it
└── NodeMisconfigured  the node cannot start: its process ends with code 2
"""


class WorkerError(Exception):
    """Root of the worker room's errors."""


class WorkspaceRefused(WorkerError):
    """The workspace of an order cannot be used; the message says why and what to do."""


class SourceUnfit(WorkspaceRefused):
    """What a workspace is to be made from is not there, is broken, or is nothing that is taken: the session's fault."""


class ResultFailed(WorkerError):
    """What a private copy became cannot be read, kept or applied; the copy or the kept result is still there."""


class BoxUnavailable(WorkerError):
    """A session's box cannot be started; the message says why and what to do.

    Args:
        message: Why.
        is_passing: The node or its engine failed: another try may have the box.
        is_own_fault: What the session wants to work on cannot be had, whoever tries.
    """

    def __init__(self, message: str, *, is_passing: bool = False, is_own_fault: bool = False) -> None:
        super().__init__(message)
        self.is_passing = is_passing
        self.is_own_fault = is_own_fault


class NoPlace(BoxUnavailable):
    """The session has no place on the node, and none is free; the message says so."""

    def __init__(self) -> None:
        super().__init__("every place of this node is taken by other sessions now", is_passing=True)


class NodeMisconfigured(WorkerError):
    """The node's settings or its machine do not allow it to start; the message says what to do."""
