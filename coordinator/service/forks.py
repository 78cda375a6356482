"""Make forks of sessions over HTTP: API → **forks** → the workspace's copy → floor."""

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from redis.exceptions import RedisError

from coordinator.cluster.parts import Cluster
from coordinator.cluster.wishes import Wish
from coordinator.errors import SandhogError, TranscriptError
from coordinator.service.admission import Admission
from coordinator.service.afar import Afar
from coordinator.service.entries import Entry
from coordinator.service.floor import Floor
from coordinator.service.making import Maker, signed
from coordinator.service.principals import Principal
from coordinator.service.records import SessionRecord, write_record
from coordinator.service.refusals import Code, Refused
from coordinator.service.volume import volume_away
from coordinator.service.wanted import NewFork, NewSession
from coordinator.session.copying import BETWEEN_S
from coordinator.session.forking import copy_kept, demand_forkable, discard, lay_out, request_of, step_of
from coordinator.session.resume import Resumable, find

COPY_S = BETWEEN_S + 125.0
"""How long another coordinator may take for a copy: until its step is over, and for the copying itself."""


@dataclass(frozen=True)
class Forks:
    """Makes the forks of one process."""

    cluster: Cluster
    admission: Admission
    floor: Floor
    maker: Maker
    afar: Afar

    async def fork(self, parent: Entry, wanted: NewFork, principal: Principal) -> tuple[Entry, bool]:
        """Return a fork of a session, and whether it is a new one; its workspace is copied by then.

        Raises:
            Refused: it may not be had, or cannot be.
            RedisError: Redis does not answer.
        """
        self.floor.demand_open()
        if parent.record.principal != principal.name:
            raise Refused(Code.FORBIDDEN, "A session of another principal's is not yours to fork.")
        if parent.record.loop == "none":
            fix = "Make a session with `loop: none` and tell it what yours knows."
            raise Refused(Code.CONFLICT, "A session without a model has no conversation that a fork could go on.", fix)
        if wanted.parameters is not None and wanted.parameters.headers:
            raise Refused(Code.INVALID, "parameters: headers are not kept, so a fork cannot have any.")
        self.admission.admit_webhook(wanted.webhook, principal)

        async def make(session_id: str) -> Entry:
            return await self._make(parent, wanted, principal, session_id)

        def digest(salt: str) -> str:
            return wanted.digest(f"{salt}\0{parent.session_id}")

        return await self.maker.once(wanted.idempotency_key, principal, digest, make)

    async def _make(self, parent: Entry, wanted: NewFork, principal: Principal, session_id: str) -> Entry:
        state_dir = self.cluster.state_dir
        # Of an earlier try that was broken off.
        await asyncio.to_thread(discard, state_dir, session_id)
        try:
            async with self.floor.quotas.room(principal, session_id):
                last = await self._copied(parent, wanted, principal, session_id)
                # Read only now: the copy's last step may have come just before it.
                found = await asyncio.to_thread(find, state_dir, parent.session_id)
                entry = await asyncio.to_thread(self._lay_out, parent, found, wanted, session_id, last)
                await self.floor.go_on(entry, wanted.prompt)
        except (SandhogError, OSError, RedisError) as exc:
            await asyncio.to_thread(discard, state_dir, session_id)
            if isinstance(exc, TranscriptError | OSError):
                raise volume_away(exc) from exc
            raise exc if isinstance(exc, Refused | RedisError) else Refused(Code.CONFLICT, str(exc)) from exc
        return entry

    async def _copied(self, parent: Entry, wanted: NewFork, principal: Principal, session_id: str) -> int | None:
        """Let the workspace be copied; return the last step whose work is in it, None where that is the last of all."""
        if parent.facts.state == "queued":
            raise Refused(Code.CONFLICT, f"Session {parent.session_id} has not begun.", "Fork it once it has a step.")
        found = await asyncio.to_thread(find, self.cluster.state_dir, parent.session_id)
        held = self.floor.held(parent.session_id)
        is_live = not parent.facts.has_ended or held is not None
        self.admission.admit_model(wanted.model or found.saved.to_model(None).model, principal)
        demand_forkable(found, wanted.at_step, is_live=is_live)
        if not is_live:
            await copy_kept(found, self.cluster, session_id)
            return None
        if held is not None:
            await held.until_begun()
            if held.copies is None:
                raise Refused(Code.CONFLICT, f"Session {parent.session_id} is just beginning.", "Ask again.")
            return await held.copies.copy_to(session_id)
        told = await self.afar.ask(parent, Wish(kind="copy", to=session_id), COPY_S)
        if told is None:
            words = f"Whoever runs session {parent.session_id} did not say that its workspace was copied."
            raise Refused(Code.UNAVAILABLE, words, "Ask again.", retry_after_s=5)
        return int(str(told.result["step"]))

    def _lay_out(self, parent: Entry, found: Resumable, wanted: NewFork, session_id: str, last: int | None) -> Entry:
        request = request_of(found, self.admission.models)
        request = replace(
            request,
            principal=parent.record.principal,
            is_adoptable=True,
            keep=wanted.keep,
            limits=wanted.limits or request.limits,
            parameters=wanted.parameters or request.parameters,
        )
        model = found.saved.to_model(None)
        model = replace(model, model=wanted.model or model.model)
        record = SessionRecord(
            session_id=session_id,
            principal=parent.record.principal,
            created_at=datetime.now(UTC),
            labels=wanted.labels,
            wanted=_as_session(parent.record.wanted, wanted),
            webhook=signed(wanted.webhook),
            forked_from=parent.session_id,
            coordinator=self.cluster.ownership.coordinator,
        )
        entry = Entry(record, self.cluster.state_dir / "sessions" / session_id)
        step = step_of(found.reading.entries, wanted.at_step, last)
        # First: what has a transcript and no record is taken for a session of a command line.
        write_record(entry.directory, record)
        lay_out(found, session_id, request, model, step)
        entry.refresh()
        return entry


def _as_session(parent: NewSession | None, wanted: NewFork) -> NewSession:
    """Return what a fork is, in the form in which sessions are asked for."""
    base = parent or NewSession(prompt=wanted.prompt)
    own = {
        "prompt": wanted.prompt,
        "bind": False,
        "model": wanted.model or base.model,
        "limits": wanted.limits or base.limits,
        "parameters": wanted.parameters or base.parameters,
        "approve": wanted.approve or base.approve,
        "stay_open": wanted.stay_open,
        "keep": wanted.keep,
        "labels": wanted.labels,
        "env": dict.fromkeys(base.env),
        "webhook": None,
        "idempotency_key": None,
    }
    return base.model_copy(update=own)
