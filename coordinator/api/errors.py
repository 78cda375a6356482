"""The one shape of all errors: refusals, validation, bugs → **errors** → `{"error": {"code", "message", "fix"}}`."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

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
    Code.UNSUPPORTED: 415,
    Code.TOO_MANY: 429,
    Code.UNAVAILABLE: 503,
    Code.INTERNAL: 500,
}
"""What HTTP calls each code."""

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
SHOWN_CHARS = 2_000
JSON_FIX = "Send a JSON object in UTF-8 with `Content-Type: application/json`; /openapi.json has its fields."


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


def faults(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what the description says of the errors that a route answers with."""
    return {status: {"model": ErrorBody} for status in statuses}


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
    app.add_exception_handler(ClientDisconnect, _left)
    app.add_exception_handler(Exception, _bug)


async def _refused(request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, Refused)
    return error_response(exc)


async def _invalid(request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, RequestValidationError)
    found = exc.errors()
    refused = _unread(request, exc.body, found[0]) if found else None
    return error_response(refused or Refused(Code.INVALID, words_of(found), "See /openapi.json for what is taken."))


def _unread(request: Request, body: Any, fault: Mapping[str, Any]) -> Refused | None:
    """Return what is said of a body that was not read at all; None where a field of it is wrong."""
    if isinstance(body, bytes):
        # What is no JSON by its header is handed on as it came.
        kind = request.headers.get("content-type")
        words = f"The body is said to be {kind[:100]!r}." if kind else "The body has no Content-Type."
        return Refused(Code.UNSUPPORTED, f"{words} JSON is taken.", JSON_FIX)
    if fault.get("type") == "json_invalid":
        said, place = fault.get("ctx", {}).get("error"), fault["loc"][-1]
        return Refused(Code.INVALID, f"The body is no JSON: {said}, at character {place}.", JSON_FIX)
    if fault.get("type") == "missing" and fault.get("loc") == ("body",):
        return Refused(Code.INVALID, "The body is missing.", JSON_FIX)
    return None


async def _http(request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, HTTPException)
    match exc.status_code:
        case 404:
            fix = "Leave out the slash at its end." if request.url.path.endswith("/") else "See /openapi.json."
            refused = Refused(Code.NOT_FOUND, f"There is nothing at {request.url.path[:200]}.", fix)
        case 405:
            return _not_allowed(request)
        case 400:
            words = "The body cannot be read: it is no UTF-8, nests too deeply, or holds a number that is too long."
            refused = Refused(Code.INVALID, words, JSON_FIX)
        case 413:
            refused = Refused(Code.TOO_LARGE, str(exc.detail))
        case status if status >= 500:
            refused = Refused(Code.INTERNAL, "The server failed.")
        case _:
            refused = Refused(Code.INVALID, f"The request cannot be read: {exc.detail}")
    return error_response(refused, dict(exc.headers or {}))


def _not_allowed(request: Request) -> JSONResponse:
    # The framework names the methods of the first route of a path alone.
    asked = {name: request.scope[name] for name in ("type", "path", "root_path", "headers")}
    routes = request.app.router.routes
    allowed = [
        method
        for method in METHODS
        if any(route.matches({**asked, "method": method})[0] is Match.FULL for route in routes)
    ]
    words = f"{request.method} is not for {request.url.path[:200]}."
    refused = Refused(Code.NOT_ALLOWED, words, f"It takes {' and '.join(allowed)}.")
    return error_response(refused, {"Allow": ", ".join(allowed)})


async def _redis(request: Request, exc: Exception) -> JSONResponse:
    log.warning("Redis does not answer", extra={"error": str(exc)})
    return error_response(Refused(Code.UNAVAILABLE, "Redis does not answer.", retry_after_s=5))


async def _left(request: Request, exc: Exception) -> Response:
    # Whoever sent it has gone in the middle of it; nobody hears this.
    return Response(status_code=400)


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
