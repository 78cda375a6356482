"""`/metrics` for Prometheus: a token of its own, or loopback where none is set."""

import hmac
from ipaddress import ip_address

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from coordinator.metrics.served import ServedMetrics
from coordinator.service.refusals import Code, Refused

PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


def metrics_router(metrics: ServedMetrics, token: str | None) -> APIRouter:
    """Return the route.

    Args:
        metrics: What is told.
        token: What a scraper must carry as bearer; with None only this machine itself may ask.
    """
    router = APIRouter(tags=["server"])

    @router.get("/metrics", include_in_schema=False)
    async def scrape(request: Request) -> Response:
        """Return all metrics."""
        if not _may_ask(request, token):
            fix = "Send SANDHOG_METRICS_TOKEN as bearer token; without that setting only loopback is answered."
            raise Refused(Code.UNAUTHENTICATED, "Metrics are for their scraper only.", fix)
        return Response(await metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    return router


def _may_ask(request: Request, token: str | None) -> bool:
    if token is not None:
        given = request.headers.get("authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())
    # Whoever comes through a proxy on this machine comes from elsewhere.
    if request.client is None or any(name in request.headers for name in PROXY_HEADERS):
        return False
    try:
        return ip_address(request.client.host).is_loopback
    except ValueError:
        return False
