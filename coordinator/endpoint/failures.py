"""What an endpoint's error means: model, deltas → **failures** → errors.

Endpoints agree on the shape `{"error": {"message", "type", "code"}}` only roughly: some send it in a list, some send
`detail` or bare text, some give the HTTP status as `code`. A history that is too long has a code at few of them and
words of its own at each.
"""

import json
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from openai import APIStatusError

from coordinator.errors import ContextTooLong, ModelError, ModelRefused, ModelUnavailable

OVERLOADED_STATUSES = frozenset({429, 503, 529})
"""The endpoint has too much to do, or this key asks too much of it."""

_RETRIED_STATUSES = frozenset({408, 409, 425, 429})
_REFUSING_STATUSES = frozenset({400, 401, 403, 404, 405, 413, 422})
_REFUSING_TYPES = frozenset({"invalid_request_error", "authentication_error", "permission_error", "not_found_error"})
_LASTING_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
"""Codes of a 429 that waiting does not cure."""

_TOO_LONG_STATUSES = frozenset({400, 413, 422, 500})
"""500: llama.cpp and its kin of older versions."""
_TOO_LONG_CODES = frozenset(
    {
        "context_length_exceeded",
        "context_window_exceeded",
        "model_context_window_exceeded",
        "exceed_context_size_error",
        "request_too_large",
        "string_above_max_length",
        "max_tokens_exceeded",
    }
)
_TOO_LONG_WORDS = re.compile(
    "|".join(
        (
            # OpenAI, Azure, vLLM, Mistral, DeepSeek, OpenRouter
            r"maximum context length",
            r"context[ _](?:length|window|size|limit)[^.]{0,60}exceed",
            r"exceed[a-z]*[^.]{0,60}context (?:length|window|size|limit)",
            # vLLM's other words
            r"longer than the (?:maximum )?model (?:context )?len",
            r"too long to fit into the model",
            r"maximum model length",
            # llama.cpp
            r"exceeds? the available context",
            r"context size has been exceeded",
            # Ollama, LM Studio
            r"(?:input|prompt) (?:length )?(?:is )?(?:too long|exceeds)[^.]{0,80}context",
            r"when (?:the )?context the overflows|context the overflows",
            r"greater than the context length",
            # Anthropic and what speaks for it
            r"prompt is too long",
            # Gemini, Vertex
            r"input token count[^.]{0,40}exceeds",
            # TGI
            r"`?inputs`? (?:tokens|must have less than)[^.]{0,60}max_(?:new|input|total)_tokens",
            r"`?inputs`? must have less than \d+ tokens",
            # SGLang
            r"(?:input|requested|prompt)[^.]{0,60}tokens?\)? (?:is )?(?:longer|exceeds?|larger)[^.]{0,60}"
            r"(?:context|maximum|model)",
            r"exceeds the maximum allowed length",
            # Groq, Cohere, Bedrock, xAI, Together, Cerebras
            r"reduce the length of the (?:messages|input|prompt)",
            r"too many tokens: |too many (?:input )?tokens in",
            r"input is too long for (?:the )?requested model|input is too long for this model",
            r"maximum prompt length",
            r"exceeded model token limit|exceeds token limit",
            r"too large for model with",
        )
    ),
    re.IGNORECASE,
)
_NOT_TOO_LONG_WORDS = re.compile(r"rate.?limit|per.minute|\b[tr]pm\b|quota", re.IGNORECASE)
_LIMIT = re.compile(
    r"(?:context (?:length|window|size)(?: limit)?(?: is)?(?: only)?(?: of)?|n_ctx\"?:|maximum(?: of)?|limit (?:is|of)|"
    r"number of tokens allowed|must be <=|>)[ :(`'\"]*(\d[\d,]{2,9})\b",
    re.IGNORECASE,
)

_WORDS_CHARS = 2000
_BODY_CHARS = 20_000


def status_error(address: str, exc: APIStatusError) -> ModelError:
    """What an HTTP error status means, with the endpoint's own words."""
    error = _status_error(address, exc)
    error.body = exc.response.text[:_BODY_CHARS]
    return error


def _status_error(address: str, exc: APIStatusError) -> ModelError:
    status = exc.status_code
    fields = _fields(_body(exc))
    words = fields.get("message") or fields.get("detail") or exc.response.reason_phrase or "no words"
    code = _code(fields)
    text = f"{address} answered {status}: {_short(words)}"
    if is_too_long(status, code, text):
        return ContextTooLong(text, status=status, code=code, limit_tokens=limit_tokens(text))
    if (status in _RETRIED_STATUSES or status >= 500) and code not in _LASTING_CODES:
        retry_after_s = retry_after(exc.response.headers)
        return ModelUnavailable(text, status=status, code=code, retry_after_s=retry_after_s)
    hints = {
        401: " (is OPENAI_API_KEY right?)",
        404: " (is the model's name right, and does the base URL end in /v1?)",
    }
    return ModelRefused(text + hints.get(status, ""), status=status, code=code)


def error_in_reply(error: Any) -> ModelError:
    """What an `error` field in the body of a 200 or in a stream means, with the endpoint's own words."""
    found = _error_in_reply(error)
    found.body = json.dumps(error, default=str, ensure_ascii=False)[:_BODY_CHARS]
    return found


def _error_in_reply(error: Any) -> ModelError:
    fields = _fields(error)
    code = _code(fields)
    status = _status(fields)
    words = fields.get("message") or fields.get("detail") or fields or "no words"
    text = f"The endpoint answered with an error: {_short(words)}"
    if is_too_long(status, code, text):
        return ContextTooLong(text, status=status, code=code, limit_tokens=limit_tokens(text))
    if status in _REFUSING_STATUSES or fields.get("type") in _REFUSING_TYPES or code in _LASTING_CODES:
        return ModelRefused(text, status=status, code=code)
    return ModelUnavailable(text, status=status, code=code)


def is_too_long(status: int | None, code: str | None, words: str) -> bool:
    """Whether an error says that the messages do not fit the model's window: by its code, else by its words.

    Args:
        status: HTTP status; None where the error came inside a 200.
        code: The endpoint's error code or type.
        words: Its message.
    """
    if code in _TOO_LONG_CODES:
        return True
    if status is not None and status not in _TOO_LONG_STATUSES:
        return False
    return _TOO_LONG_WORDS.search(words) is not None and _NOT_TOO_LONG_WORDS.search(words) is None


def limit_tokens(words: str) -> int | None:
    """The window's size as an error's words name it; None when they do not."""
    found = _LIMIT.search(words)
    return int(found[1].replace(",", "")) if found else None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds the endpoint asked for: in milliseconds, seconds, or as a date against its own clock."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        wait = parsedate_to_datetime(headers["retry-after"]) - parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError, TypeError):
        return None
    return max(wait.total_seconds(), 0.0)


def _body(exc: APIStatusError) -> Any:
    """The error's body, also where the client has not taken it for JSON."""
    if exc.body is not None and not isinstance(exc.body, str):
        return exc.body
    try:
        return json.loads(exc.response.text)
    except (ValueError, RecursionError):
        return exc.body or exc.response.text


def _fields(body: Any) -> Mapping[str, Any]:
    """The error object inside `{error: …}`, a list of one, an object of its own, or bare text."""
    if isinstance(body, list) and body:
        body = body[0]
    if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping):
        body = body["error"]
    if isinstance(body, Mapping):
        inner = body.get("error")
        return {**body, "message": inner} if isinstance(inner, str) and not body.get("message") else body
    return {"message": body} if body else {}


def _code(fields: Mapping[str, Any]) -> str | None:
    """The code, else the type where that is one of the codes that matter."""
    code, kind = fields.get("code"), fields.get("type")
    if isinstance(kind, str) and kind in _TOO_LONG_CODES | _LASTING_CODES:
        return kind
    return None if code is None else str(code)


def _status(fields: Mapping[str, Any]) -> int | None:
    for value in (fields.get("code"), fields.get("status"), fields.get("status_code")):
        try:
            status = int(value) if not isinstance(value, bool) and value is not None else 0
        except (TypeError, ValueError):
            continue
        if 400 <= status < 600:
            return status
    return None


def _short(words: Any) -> str:
    text = words if isinstance(words, str) else json.dumps(words, default=str)
    return text if len(text) <= _WORDS_CHARS else text[:_WORDS_CHARS] + "…"
