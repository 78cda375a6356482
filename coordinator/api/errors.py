"""The one shape of all errors: refusals, validation, bugs → **errors** → `{"error": {"code", "message", "fix"}}`."""

import logging
import math
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException

from coordinator.service.refusals import Code, Refused

log = logging.getLogger(__name__)

STATUS = {
    Code.INVALID: 422,
    Code.UNAUTHENTICATED: 401,
    Code.FORBIDDEN: 403,
    Code.NOT_FOUND: 404,
    Code.NOT_ALLOWED: 405,
    Code.CONFLICT: 409,
    Code.TOO_LARGE: 413,
    Code.TOO_MANY: 429,
    Code.UNAVAILABLE: 503,
    Code.INTERNAL: 500,
}
"""What HTTP calls each code."""

SHOWN_CHARS = 2_000


class Fault(BaseModel):
    """What went wrong."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    code: Code
    message: str
    """What was asked, and what is wrong with it."""
    fix: str
    """What to do; "" where the message says it."""


class ErrorBody(BaseModel):
    """The body of every answer that is an error."""

    error: Fault


def error_response(refused: Refused, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return a refusal as HTTP has it."""
    given = dict(headers or {})
    if refused.code is Code.UNAUTHENTICATED:
        given["WWW-Authenticate"] = "Bearer"
    if refused.retry_after_s is not None:
        given["Retry-After"] = str(max(1, math.ceil(refused.retry_after_s)))
    fault = Fault(code=refused.code, message=_shown(refused.message), fix=_shown(refused.fix))
    content = ErrorBody(error=fault).model_dump(mode="json")
    return JSONResponse(content, STATUS[refused.code], given)


def install(app: FastAPI) -> None:
    """Let the app answer every error in the one shape."""
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RedisError, _redis)
    app.add_exception_handler(Exception, _bug)


async def _refused(request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, Refused)
    return error_response(exc)


async def _invalid(request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, RequestValidationError)
    return error_response(Refused(Code.INVALID, words_of(exc.errors()), "See /openapi.json for what is taken."))


async def _http(request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, HTTPException)
    match exc.status_code:
        case 404:
            refused = Refused(Code.NOT_FOUND, f"There is nothing at {request.url.path[:200]}.", "See /openapi.json.")
        case 405:
            refused = Refused(Code.NOT_ALLOWED, f"{request.method} is not for {request.url.path[:200]}.")
        case 413:
            refused = Refused(Code.TOO_LARGE, str(exc.detail))
        case status if status >= 500:
            refused = Refused(Code.INTERNAL, "The server failed.")
        case _:
            refused = Refused(Code.INVALID, f"The request cannot be read: {exc.detail}")
    return error_response(refused, dict(exc.headers or {}))


async def _redis(request: Request, exc: Exception) -> JSONResponse:
    log.warning("Redis does not answer", extra={"error": str(exc)})
    return error_response(Refused(Code.UNAVAILABLE, "Redis does not answer.", retry_after_s=5))


async def _bug(request: Request, exc: Exception) -> JSONResponse:
    # Logged with its trace by the server, which sees the exception as well.
    return error_response(Refused(Code.INTERNAL, "The server failed; its log has the cause."))


def words_of(faults: Sequence[Any]) -> str:
    """Return what is wrong with a request in one line; never what it holds, which may be secret."""
    words = []
    for fault in faults[:5]:
        where = ".".join(str(part)[:60] for part in fault.get("loc", ()) if part != "body")
        said = str(fault.get("msg", "")).removeprefix("Value error, ")
        words.append(f"{where}: {said}" if where else said)
    more = f" (and {len(faults) - 5} more)" if len(faults) > 5 else ""
    return "; ".join(words) + more


def _shown(text: str) -> str:
    clean = text.encode("utf-8", "replace").decode()
    return clean if len(clean) <= SHOWN_CHARS else clean[:SHOWN_CHARS] + "…"
