"""The clients of the server's model endpoint, one a model: serve → **models** → sessions."""

from dataclasses import replace

from coordinator.endpoint.limiter import EndpointLimiter
from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.service.refusals import Code, Refused

MAX_MODELS = 64
"""Names of models that are asked for in the life of a process; a client each stays open."""


class Models:
    """Clients that share one limit on requests under way. Use `async with`."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._limiter = EndpointLimiter(settings.max_requests)
        self._clients: dict[str, ModelClient] = {}

    async def __aenter__(self) -> "Models":
        return self

    async def __aexit__(self, *exc: object) -> None:
        for client in self._clients.values():
            await client.close()

    def of(self, name: str | None) -> ModelClient:
        """Return the client of a model; None is the server's own.

        Raises:
            Refused: too many different ones were asked for.
        """
        model = name or self._settings.model
        client = self._clients.get(model)
        if client is None:
            if len(self._clients) >= MAX_MODELS:
                raise Refused(Code.TOO_MANY, f"model: {MAX_MODELS} different ones were asked for already.")
            client = ModelClient(replace(self._settings, model=model), limiter=self._limiter)
            self._clients[model] = client
        return client
