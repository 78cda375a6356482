"""Puts the page into the server's app: service → **app** → routes."""

from fastapi import FastAPI

from coordinator.audit import AuditLog
from coordinator.page import routes, session_routes
from coordinator.page.asking import Asking
from coordinator.page.login import Logins, Patience
from coordinator.page.routing import Page
from coordinator.service.sessions import Sessions
from coordinator.service.tokens import Tokens


def install(app: FastAPI, service: Sessions, tokens: Tokens) -> None:
    """Let the app serve the page too."""
    state_dir = service.cluster.state_dir
    asking = Asking(service.cluster.requests, service.index)
    app.state.page = Page(service, Logins(state_dir, tokens), Patience(), AuditLog(state_dir), asking)
    app.include_router(routes.router)
    app.include_router(session_routes.router)
