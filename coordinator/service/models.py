"""The clients of the server's model endpoint, one a model: serve → **models** → sessions."""

from dataclasses import replace

from coordinator.endpoint.limiter import EndpointLimiter
from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.service.refusals import Code, Refused

MAX_MODELS = 64
"""Names of models that are asked for in the life of a process; a client each stays open."""

NO_ENDPOINT = ModelSettings("none", base_url="http://127.0.0.1:9/v1")
"""Nobody listens there."""


class Models:
    """Clients that share one limit on requests under way. Use `async with`.

    Args:
        settings: The server's endpoint; None where there is none, and only calls from outside are run.
    """

    def __init__(self, settings: ModelSettings | None) -> None:
        self._settings = settings or NO_ENDPOINT
        self._has_endpoint = settings is not None
        self.limiter = EndpointLimiter(self._settings.max_requests)
        self._clients: dict[str, ModelClient] = {}
        self._nobody: ModelClient | None = None

    async def __aenter__(self) -> "Models":
        return self

    async def __aexit__(self, *exc: object) -> None:
        for client in self._clients.values():
            await client.close()

    def of(self, name: str | None) -> ModelClient:
        """Return the client of a model; None is the server's own.

        Raises:
            Refused: too many different ones were asked for, or there is no endpoint.
        """
        if not self._has_endpoint:
            fix = "Set OPENAI_BASE_URL or OPENAI_API_KEY where the server is started."
            raise Refused(Code.INVALID, "The server has no model: only sessions with `loop: none` run.", fix)
        model = name or self._settings.model
        if not model:
            raise Refused(
                Code.INVALID, "model: the server has no default one.", "Name one, or set SANDHOG_MODEL there."
            )
        client = self._clients.get(model)
        if client is None:
            if len(self._clients) >= MAX_MODELS:
                raise Refused(Code.TOO_MANY, f"model: {MAX_MODELS} different ones were asked for already.")
            client = ModelClient(replace(self._settings, model=model), limiter=self.limiter)
            self._clients[model] = client
        return client

    @property
    def nobody(self) -> ModelClient:
        """The client of sessions without a model; it is never asked."""
        if self._nobody is None:
            self._nobody = self._clients[""] = ModelClient(NO_ENDPOINT)
        return self._nobody
