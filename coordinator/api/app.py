"""The app: bounds → auth → routes → service."""

from fastapi import Depends, FastAPI

from coordinator.api import archives, errors, results, server, sessions, steering, tool_calls, tree
from coordinator.api.asked import only_described
from coordinator.api.audited import Audited
from coordinator.api.auth import Authenticated
from coordinator.api.bounds import Bounds
from coordinator.api.metrics import metrics_router
from coordinator.audit import AuditLog
from coordinator.metrics.served import ServedMetrics
from coordinator.page import app as page
from coordinator.service.box_canary import BoxCanary
from coordinator.service.denials import denials_to
from coordinator.service.serve_settings import ServeSettings
from coordinator.service.sessions import Sessions
from coordinator.service.tokens import Tokens

UPLOAD_PATH = "/v1/archives"
VERSION = "1"


def create_app(service: Sessions, tokens: Tokens, settings: ServeSettings, canary: BoxCanary | None = None) -> FastAPI:
    """Return the API over a service. The service and its canary are begun and ended by their owner."""
    app = FastAPI(
        title="Sandhog",
        version=VERSION,
        summary="Run coding agents whose tool calls happen in sealed sandboxes.",
        # Their pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
        # A redirect would have the scheme that the server sees, and lead a token past the TLS of a proxy.
        redirect_slashes=False,
    )
    app.state.sessions = service
    app.state.canary = canary
    for part in (sessions, steering, tool_calls, results, tree, archives, server):
        app.include_router(part.router, dependencies=[Depends(only_described)])
    scrape_token = settings.metrics_token.get_secret_value() if settings.metrics_token is not None else None
    app.include_router(metrics_router(ServedMetrics(service, canary), scrape_token))
    errors.install(app)
    page.install(app, service, tokens)
    audit = AuditLog(service.cluster.state_dir)
    service.floor.watchers.append(denials_to(audit))
    # The one added last is asked first.
    app.add_middleware(Audited, log=audit)
    app.add_middleware(Authenticated, tokens=tokens)
    app.add_middleware(
        Bounds,
        max_bytes=settings.max_body_bytes,
        max_upload_bytes=settings.max_archive_bytes,
        upload_path=UPLOAD_PATH,
    )
    return app
