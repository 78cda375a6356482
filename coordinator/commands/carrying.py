"""Files and directories as a tar between this machine and a session's box, or what is kept of one: cp → **carrying**.

What comes out of a box is nobody's to trust: the node side's program unpacks it, below one name that is ours.
"""

import asyncio
import posixpath
from pathlib import Path

from coordinator.cluster.channel import FarPipe
from coordinator.commands.acting import keep_action
from coordinator.commands.reaching import find_box, reach
from coordinator.commands.tree_program import MAX_WORDS, TreeProgram
from coordinator.ending import end
from coordinator.errors import NoBox, NotCopied
from coordinator.settings import Settings
from coordinator.visible import visible_line
from worker.contract.channels import Do, PackTree, UnpackTree
from worker.contract.places import has_private_copy


async def copy_out(settings: Settings, session: str, path: str, local: str) -> str:
    """Copy out of a box, or of a kept copy; return what is to be said of it, "" for nothing.

    Raises:
        NotCopied: it was not, or not all of it.
        NoBox: there is neither box nor copy.
        ConfigError: the cluster cannot be asked.
        ChannelOver: the box ended meanwhile.
        TranscriptError: the audit log takes no line; nothing was done.
    """
    unpack, detail = ["unpack", "--", local, _name_of(path)], f"{path} to {local}"
    async with find_box(settings, session) as found:
        if found is None:
            pack = ["pack", f"--session={_kept(settings, session)}", "--", path]
            keep_action(settings.state_dir, "copy_out", session=session, detail=detail)
            return await _through(pack, unpack)
        async with reach(settings, found, session, "copy_out", detail) as channel, TreeProgram.start(*unpack) as here:
            pipe = await channel.open(PackTree(path=path))
            has_stopped, far, said = await _received(pipe, here)
            near = await here.failure()
    if (near and has_stopped) or not far:
        return _judged(near, said)
    raise NotCopied(f"In the box: {far}")


async def copy_in(settings: Settings, session: str, local: str, path: str) -> str:
    """Copy into a box, or into a kept copy; as `copy_out`."""
    pack, detail = ["pack", "--", local], f"{local} to {path}"
    async with find_box(settings, session) as found:
        if found is None:
            name = await asyncio.to_thread(_own_name, local)
            unpack = ["unpack", f"--session={_kept(settings, session)}", "--", path, name]
            keep_action(settings.state_dir, "copy_in", session=session, detail=detail)
            return await _through(pack, unpack)
        async with reach(settings, found, session, "copy_in", detail) as channel, TreeProgram.start(*pack) as here:
            pipe = await channel.open(UnpackTree(path=path))
            sending = asyncio.create_task(_send(here, pipe))
            _, far, said = await _received(pipe, None)
            if sending.done():
                return _judged(sending.result() or far, said)
            # The box took no more; what is packed here is of no use.
            await end(sending)
    raise NotCopied(f"In the box: {far or 'it read only a part'}")


def _name_of(path: str) -> str:
    """Return what a path of a box is called here, also one that says no name."""
    name = posixpath.basename(posixpath.normpath(path))
    return "workspace" if name in ("", ".", "..") else name


def _own_name(local: str) -> str:
    return Path(local).resolve().name


def _kept(settings: Settings, session: str) -> Path:
    """Return the directory of a session whose private copy is kept."""
    session_dir = settings.state_dir / "sessions" / session
    if not has_private_copy(session_dir):
        raise NoBox(
            f"Session {session} has no box now, and no private copy of it is kept: `sandhog run --keep` leaves one. A "
            "session on a directory of yours worked there."
        )
    return session_dir


async def _through(pack: list[str], unpack: list[str]) -> str:
    """Let one program on this machine give its tar to another; return what is to be said.

    Raises:
        NotCopied: one of them failed.
    """
    async with TreeProgram.start(*pack) as source, TreeProgram.start(*unpack) as target:
        has_stopped = False
        while not has_stopped and (piece := await source.read()):
            has_stopped = not await target.write(piece)
        if has_stopped:
            return _judged(await target.failure(), "")
        far, near = await source.failure(), await target.failure()
    return _judged(far or near, "")


async def _received(pipe: FarPipe, here: TreeProgram | None) -> tuple[bool, str, str]:
    """Give what comes out of the box to a program.

    Returns:
        Whether the program took no more; why the box failed, "" if it did not; what was said there.
    """
    said = bytearray()
    failure, has_stopped = "", False
    async for frame, body in pipe.frames():
        if frame.do is Do.ERRORS:
            said += body[: max(0, MAX_WORDS - len(said))]
        elif frame.do is Do.DATA and here is not None and not has_stopped:
            has_stopped = not await here.write(body)
            if has_stopped:
                await pipe.close()
        elif frame.do is Do.CLOSE and frame.exit_code != 0:
            failure = frame.words
    words = visible_line(said.decode(errors="replace").strip(), MAX_WORDS)
    return has_stopped, failure and (words or visible_line(failure, MAX_WORDS)), words


async def _send(here: TreeProgram, pipe: FarPipe) -> str:
    """Send what a program packs; return why it failed, "" if it did not."""
    while piece := await here.read():
        await pipe.write(piece)
    failure = await here.failure()
    # Half a tree is no tree: its reader ends with what it has.
    await (pipe.close() if failure else pipe.end())
    return failure


def _judged(failure: str, said: str) -> str:
    if failure:
        raise NotCopied(failure)
    return said
