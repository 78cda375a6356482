"""What a server answered → **ToolResult**: text for the model, words for what is none."""

import json

from mcp.types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from tools.base import ErrorCode, ToolResult

NOTHING = "(the server answered with nothing)"


def tool_result(answer: CallToolResult) -> ToolResult:
    """Return the answer as a tool's result."""
    text = "\n".join(_text(block) for block in answer.content)
    structured = answer.structured_content
    if not text.strip() and structured is not None:
        text = json.dumps(structured, ensure_ascii=False, separators=(",", ":"))
    # Half a surrogate pair is no text that could be sent on.
    text = text.encode(errors="replace").decode() or NOTHING
    if answer.is_error:
        return ToolResult.failure(ErrorCode.EXECUTION_ERROR, "The server says that the call failed.", text=text)
    is_whole = all(_is_shown(block) for block in answer.content)
    return ToolResult(status="success" if is_whole else "partial", text=text)


def _is_shown(block: ContentBlock) -> bool:
    if isinstance(block, EmbeddedResource):
        return isinstance(block.resource, TextResourceContents)
    return isinstance(block, TextContent | ResourceLink)


def _text(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            what = "an image" if isinstance(block, ImageContent) else "a recording"
            size = len(block.data.rstrip("=")) * 3 // 4
            return f"[{what} of {size} bytes ({block.mime_type:.60}) is left out: only text can be shown]"
        case ResourceLink():
            return f"[resource {block.uri}: {block.description or block.name}]"
        case EmbeddedResource(resource=TextResourceContents(text=text)):
            return text
        case EmbeddedResource():
            return f"[the resource {block.resource.uri} is left out: only text can be shown]"
        case _:
            return f"[a part of the kind {type(block).__name__} is left out: only text can be shown]"
