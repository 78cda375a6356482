"""The clients of a batch's models: one for each model's name, all behind one limiter of their endpoint."""

import asyncio
from dataclasses import replace

from coordinator.endpoint.limiter import EndpointLimiter
from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.endpoint.model_choice import choose_model


class Clients:
    """Finds the client of a model. Close it when done."""

    def __init__(self, settings: ModelSettings) -> None:
        """`settings`: of the tasks that name no model."""
        self._settings = settings
        self._limiter = EndpointLimiter(settings.max_requests)
        self._clients: dict[str, ModelClient] = {}
        self._choosing = asyncio.Lock()

    async def client(self, model: str | None) -> ModelClient:
        """Return the client of a model; None is the batch's own.

        Raises:
            ConfigError: no model is named, and the endpoint lists several.
        """
        if model is None:
            async with self._choosing:
                self._settings = await choose_model(self._settings)
            model = self._settings.model
        if model not in self._clients:
            self._clients[model] = ModelClient(replace(self._settings, model=model), limiter=self._limiter)
        return self._clients[model]

    def name(self, model: str | None) -> str:
        """Return the name of a model; of the batch's own, "" until it is chosen."""
        return model or self._settings.model

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.close()
