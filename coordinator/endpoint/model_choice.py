"""Which model is asked where nobody named one: settings → **model_choice** → model."""

from dataclasses import replace

from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.errors import ConfigError

DEFAULT_MODEL = "gpt-5.5"
"""For OpenAI's own endpoint, and sent to servers that list no models: as a rule they take any name."""

SHOWN_NAMES = 12


async def choose_model(settings: ModelSettings) -> ModelSettings:
    """Return the settings with a model: the one named, else the only one that the endpoint lists.

    Raises:
        ConfigError: the endpoint lists several; the message names them.
    """
    if settings.model:
        return settings
    if settings.base_url is None:
        return replace(settings, model=DEFAULT_MODEL)
    client = ModelClient(settings)
    try:
        names = await client.listed_models()
    finally:
        await client.close()
    if len(names) > 1:
        shown = ", ".join(sorted(names)[:SHOWN_NAMES]) + (", …" if len(names) > SHOWN_NAMES else "")
        raise ConfigError(f"{settings.base_url} has {len(names)} models; give --model NAME (SANDHOG_MODEL): {shown}")
    return replace(settings, model=names[0] if names else DEFAULT_MODEL)
