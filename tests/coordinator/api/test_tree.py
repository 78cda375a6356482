"""A session's whole workspace as a tar."""

import io
import os
import tarfile

from coordinator.api import tree
from tests.coordinator.api.conftest import Served, code
from tests.coordinator.api.test_sessions import created


async def test_a_workspace_is_fetched_whole_with_links_as_links(served: Served) -> None:
    client = served.client()
    session_id = await created(client)
    await served.ended(client, session_id)
    assert code(await client.get(f"/v1/sessions/{session_id}/tree")) == "NOT_FOUND"

    work = served.state_dir / "sessions" / session_id / "work"
    (work / "sub").mkdir(parents=True)
    (work / "sub" / "a.txt").write_text("alpha\n")
    (work / "secret").symlink_to("/etc/passwd")
    os.mkfifo(work / "pipe")
    response = await client.get(f"/v1/sessions/{session_id}/tree")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(response.content)) as tar:
        found = {member.name: member for member in tar}
        assert set(found) == {session_id, f"{session_id}/sub", f"{session_id}/sub/a.txt", f"{session_id}/secret"}
        assert found[f"{session_id}/secret"].issym()
        content = tar.extractfile(found[f"{session_id}/sub/a.txt"])
        assert content is not None
        assert content.read() == b"alpha\n"

    stranger = served.principal("stranger")
    assert code(await stranger.get(f"/v1/sessions/{session_id}/tree")) == "NOT_FOUND"


async def test_a_workspace_beyond_the_bounds_is_refused_before_anything_is_sent(served: Served) -> None:
    client = served.client()
    session_id = await created(client)
    await served.ended(client, session_id)
    work = served.state_dir / "sessions" / session_id / "work"
    work.mkdir()
    with (work / "large").open("wb") as file:
        file.truncate(tree.BOUNDS.total_bytes + 1)
    assert code(await client.get(f"/v1/sessions/{session_id}/tree")) == "TOO_LARGE"


async def test_a_copy_that_is_a_link_is_not_followed(served: Served) -> None:
    client = served.client()
    session_id = await created(client)
    await served.ended(client, session_id)
    (served.state_dir / "sessions" / session_id / "work").symlink_to("/etc")
    assert code(await client.get(f"/v1/sessions/{session_id}/tree")) == "NOT_FOUND"
