"""What endpoints say when they refuse, fail, or are sent too much."""

import json
from typing import Any

import httpx2
import pytest
from openai import APIStatusError

from coordinator.endpoint.failures import error_in_reply, is_too_long, limit_tokens, retry_after, status_error
from coordinator.errors import ContextTooLong, ModelError, ModelRefused, ModelUnavailable

TOO_LONG = [
    # OpenAI, of old and now
    (400, "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.", 8192),
    (400, "Your input exceeds the context window of this model. Please adjust your input and try again.", None),
    # vLLM
    (400, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 in the", 4096),
    (400, "The prompt (total length 25938) is too long to fit into the model (context length 4096).", 4096),
    (
        400,
        "'max_tokens' or 'max_completion_tokens' is too large: 8000. This model's maximum context length is 4096",
        4096,
    ),
    # llama.cpp
    (400, "request (5120 tokens) exceeds the available context size (4096 tokens), try increasing it", 4096),
    (500, "context size has been exceeded", None),
    # Ollama, LM Studio
    (400, "the input length exceeds the context length", None),
    (400, "Trying to keep the first 10136 tokens when context the overflows. However, the model is loaded with", None),
    # Anthropic
    (400, "prompt is too long: 206640 tokens > 200000 maximum", 200_000),
    (
        400,
        "input length and `max_tokens` exceed context limit: 90402 + 116650 > 204648, decrease input length",
        204_648,
    ),
    # Mistral
    (
        400,
        "Prompt contains 33000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        None,
    ),
    # Gemini
    (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1_048_576),
    # TGI
    (
        422,
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 1244 `inputs` tokens",
        2048,
    ),
    (422, "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000", None),
    # SGLang
    (400, "Input length (9000 tokens) exceeds the maximum allowed length (8192 tokens).", None),
    (400, "The input (9000 tokens) is longer than the model's context length (8192 tokens).", 8192),
    # Groq, Bedrock, xAI
    (400, "Please reduce the length of the messages or completion.", None),
    (400, "Input is too long for requested model.", None),
    (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens.", None),
]


@pytest.mark.parametrize(("status", "words", "limit"), TOO_LONG)
def test_the_wordings_of_a_history_that_is_too_long_are_known(status: int, words: str, limit: int | None) -> None:
    error = refused(status, {"error": {"message": words, "type": "invalid_request_error"}})
    assert isinstance(error, ContextTooLong)
    assert words in str(error)
    assert limit is None or error.limit_tokens == limit


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "max_tokens must be at least 1"),
        (
            400,
            "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is supported.",
        ),
        (400, "tools: the name of tool 3 is too long"),
        (400, "messages: 'content' is missing"),
        (401, "This model's maximum context length is 8192 tokens."),
        (429, "Rate limit reached for tokens per minute (TPM): Limit 30000, Requested 40000"),
        (400, "Rate limit: the input exceeds your context limit per minute"),
        (404, "The model `x` does not exist"),
    ],
)
def test_other_refusals_are_not_taken_for_it(status: int, words: str) -> None:
    assert not is_too_long(status, None, words)
    assert not isinstance(refused(status, {"error": {"message": words}}), ContextTooLong)


@pytest.mark.parametrize("field", ["code", "type"])
@pytest.mark.parametrize("code", ["context_length_exceeded", "exceed_context_size_error", "request_too_large"])
def test_a_code_tells_it_without_words(field: str, code: str) -> None:
    assert isinstance(refused(400, {"error": {"message": "no", field: code}}), ContextTooLong)


def test_it_is_told_inside_a_stream_too() -> None:
    error = error_in_reply({"message": "the request exceeds the available context size", "code": 400})
    assert isinstance(error, ContextTooLong)
    assert error.status == 400


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "words of it", "code": "c"}},
        [{"error": {"message": "words of it", "code": "c", "status": "INVALID_ARGUMENT"}}],
        {"message": "words of it", "code": "c"},
        {"detail": "words of it"},
        {"detail": [{"type": "extra_forbidden", "msg": "words of it"}]},
        {"error": "words of it"},
        {"object": "error", "message": {"detail": "words of it"}},
        "words of it",
    ],
)
def test_the_words_are_found_in_any_body(body: Any) -> None:
    error = refused(400, body)
    assert type(error) is ModelRefused
    assert "words of it" in str(error)
    assert "words of it" in error.body


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "overloaded", "code": 502}, ModelUnavailable),
        ({"message": "overloaded", "code": "529"}, ModelUnavailable),
        ({"message": "no", "code": 400}, ModelRefused),
        ({"message": "no", "code": "insufficient_quota"}, ModelRefused),
        ({"message": "no", "type": "authentication_error"}, ModelRefused),
        ({"object": "error", "message": "no", "code": 404}, ModelRefused),
        ("sorry", ModelUnavailable),
    ],
)
def test_an_error_inside_a_reply_is_sorted_by_what_it_says(error: Any, kind: type[ModelError]) -> None:
    assert type(error_in_reply(error)) is kind


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "Wed, 30 Jan 2030 10:00:09 GMT", "date": "Wed, 30 Jan 2030 10:00:00 GMT"}, 9.0),
        ({"retry-after": "Wed, 30 Jan 2030 09:00:00 GMT", "date": "Wed, 30 Jan 2030 10:00:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 30 Jan 2030 10:00:09 GMT"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_seconds_milliseconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_no_window_is_made_up() -> None:
    assert limit_tokens("Please reduce the length of the messages.") is None


def test_endless_words_are_cut() -> None:
    error = refused(500, {"error": {"message": "x" * 100_000}})
    assert len(str(error)) < 3_000
    assert len(error.body) == 20_000


def refused(status: int, body: Any) -> ModelError:
    """What the client makes of an answer with this status and body."""
    text = body if isinstance(body, str) else json.dumps(body)
    request = httpx2.Request("POST", "http://example.org/v1")
    response = httpx2.Response(status, text=text, request=request)
    # As the client does: the body decoded, and its `error` field taken out where it has one.
    data = body if isinstance(body, str) else json.loads(text)
    inner = data.get("error", data) if isinstance(data, dict) else data
    return status_error("http://example.org/v1", APIStatusError("failed", response=response, body=inner))
