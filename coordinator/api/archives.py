"""The route that takes archives."""

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict

from coordinator.api.asked import Service
from coordinator.api.auth import Asker
from coordinator.api.errors import faults
from coordinator.service.refusals import Code, Refused

router = APIRouter(tags=["archives"], responses=faults(401, 413, 415, 422, 503))


class Uploaded(BaseModel):
    """An archive that is there now, for a day."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    archive: str
    """Name it in `POST /v1/sessions`."""
    size_bytes: int


@router.put(
    "/v1/archives",
    status_code=201,
    response_model=Uploaded,
    openapi_extra={"requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}},
)
async def upload(request: Request, service: Service, asker: Asker) -> Uploaded:
    """Send an archive (tar, plain or compressed, or zip) that sessions can be made of; its bytes are the body."""
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise Refused(Code.UNSUPPORTED, "A form is no archive.", "Send the file itself as the body, as `curl -T FILE`.")
    try:
        name, size = await service.archives.keep(request.stream(), asker.name)
    except OSError as exc:
        raise Refused(Code.UNAVAILABLE, "The server's volume does not take the archive.", retry_after_s=30) from exc
    return Uploaded(archive=name, size_bytes=size)
