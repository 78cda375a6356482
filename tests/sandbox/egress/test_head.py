"""Requests to the proxy port: read strictly, written anew, ended where they end."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.egress.body import BadBody, Chunked, Sized
from sandbox.egress.head import BadRequest, parse_request
from sandbox.egress.rules import host_name


def test_a_plain_request_is_written_anew() -> None:
    request = parse_request(
        b"POST HTTP://Example.ORG:8080?q=1 HTTP/1.1\r\nhOsT: other\r\nUser-Agent: x\r\nConnection: close, x-hop\r\n"
        b"X-Hop: 1\r\nUpgrade: h2c\r\nContent-Length: 3\r\nX-Empty:\r\n\r\n"
    )
    assert (request.host, request.port) == ("example.org", 8080)
    assert request.head == (
        b"POST /?q=1 HTTP/1.1\r\nHost: example.org:8080\r\nUser-Agent: x\r\nX-Empty: \r\nContent-Length: 3\r\n"
        b"Connection: close\r\n\r\n"
    )


def test_a_tunnel_has_nothing_to_send_first() -> None:
    request = parse_request(b"CONNECT Example.org.:443 HTTP/1.0\r\n\r\n")
    assert (request.host, request.port, request.head, request.body) == ("example.org", 443, b"", None)


HEADS = st.lists(
    st.sampled_from(
        [b"GET ", b"CONNECT ", b"http://", b"a.org", b":80", b"/", b" HTTP/1.1", b"\r\n", b"\n", b"\r", b"\0", b" ",
         b"Host: b.org", b"Content-Length: 1", b"Transfer-Encoding: chunked", b":", b"@", b"\\", b"#",
         b"\t", b"%0d%0a", b"\xff"]
    ),
    max_size=14,
)  # fmt: skip


@given(HEADS)
def test_whatever_comes_a_head_that_goes_out_has_one_host_and_clean_lines(parts: list[bytes]) -> None:
    with contextlib.suppress(BadRequest):
        request = parse_request(b"".join(parts) + b"\r\n\r\n")
        assert host_name(request.host) == request.host
        lines = request.head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        assert not any(byte in line for line in lines for byte in (b"\r", b"\n", b"\0"))
        if request.body is not None:
            assert [line for line in lines if line.lower().startswith(b"host:")] == [
                b"Host: " + (request.host if request.port == 80 else f"{request.host}:{request.port}").encode()
            ]


@given(st.binary(max_size=40), st.integers(0, 30), st.lists(st.integers(1, 7), max_size=12))
def test_a_sized_body_ends_at_its_size(data: bytes, size: int, cuts: list[int]) -> None:
    body, taken, rest = Sized(size), b"", data
    for cut in [*cuts, len(data)]:
        taken += body.take(rest[:cut])
        rest = rest[cut:]
    assert taken == data[:size]
    assert body.is_done is (len(data) >= size)


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=5), st.integers(1, 9), st.binary(max_size=10))
def test_a_chunked_body_is_the_same_in_any_pieces_and_ends_at_its_end(
    chunks: list[bytes], step: int, after: bytes
) -> None:
    wire = b"".join(b"%X\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    anew = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    body, data = Chunked(), wire + after
    out = b"".join(body.take(data[at : at + step]) for at in range(0, len(data), step))
    assert out == anew
    assert body.is_done


@pytest.mark.parametrize(
    "data",
    [b"x\r\n", b"-1\r\n", b"+1\r\n", b"0x1\r\n", b"1 \r\n", b"1;ext=1\r\n", b"1\n", b"\r\n", b"1\r\nab", b"1\r\na\n\n",
     b"0\r\nTrailer: 1\r\n", b"1" * 300, b"fffffffffffff\r\n"],
)  # fmt: skip
def test_a_chunk_that_can_be_read_in_two_ways_is_refused(data: bytes) -> None:
    with pytest.raises(BadBody):
        Chunked().take(data)
