"""The HTTP API over the service. Read: app, auth, sessions; `docs/http-api.md` shows it from outside."""
