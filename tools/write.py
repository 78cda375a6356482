"""Write: a whole file."""

from pydantic import Field

from sandbox.requests import WriteRequest
from sandbox.wire import MAX_BODY_BYTES
from tools.base import ErrorCode, Parameters, RunContext, Stats, Tool, ToolFailure, ToolResult
from tools.cutting import count_lines
from tools.edit import other_names
from tools.refusals import refusals_as_failures
from tools.seen import changing


class WriteParameters(Parameters):
    """Arguments of Write."""

    path: str = Field(min_length=1)
    """File to write; absolute, or relative to the working directory. Missing parent directories are made."""
    content: str
    """All the file shall hold, as UTF-8."""


class Write(Tool[WriteParameters]):
    """Makes a file, or replaces all of one."""

    name = "Write"
    description = (
        "Write a whole file in the sandbox: makes a new one, parents included, or replaces all of an existing one, all "
        "of whose lines must have been Read. To change parts of a file use Edit."
    )
    parameters = WriteParameters

    def run(self, arguments: WriteParameters, context: RunContext) -> ToolResult:
        """Return what was written."""
        content = arguments.content.encode()
        if len(content) > MAX_BODY_BYTES:
            raise ToolFailure(
                ErrorCode.INVALID_PARAM,
                f"content has {len(content)} bytes, more than the {MAX_BODY_BYTES} of one Write",
            )
        with (
            refusals_as_failures(),
            changing(context.seen, context.box, context.mark, arguments.path, whole=True) as change,
        ):
            request = WriteRequest(context.mark, change.path, content, change.expected, change.must_be_new)
            answer = context.box.write(request)
            change.done(answer.path, answer.version)
        lines = count_lines(content)
        verb = "Created" if answer.created else "Replaced"
        return ToolResult(
            status="success",
            text=f"{verb} {answer.path}: {answer.bytes} bytes, {lines} lines.{other_names(answer.other_names)}",
            data={"path": answer.path, "created": answer.created, "lines": lines},
            stats=Stats(bytes=answer.bytes),
        )
