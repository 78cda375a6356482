"""Sub-agents on the page of their session: their transcripts → **agents** → blocks, nested in the call's own."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from coordinator.page.blocks import Block, Child
from coordinator.page.story import NESTED, Story
from coordinator.service.journal import Journal
from coordinator.session.transcript import CHILDREN_DIR

NAME = r"[0-9]{1,9}-[0-9]{1,9}-[0-9]{1,9}(\.[0-9]{1,9}-[0-9]{1,9}-[0-9]{1,9}){0,9}"
"""How a sub-agent's directory is named."""
MAX_AGENTS = 40
"""So many of one page are looked up, the newest; all have pages of their own."""


@dataclass
class _Told:
    story: Story
    journal: Journal
    child: Child


class Agents:
    """Looks up what the sub-agents on one page do.

    Args:
        session_dir: That of the session whose box they work in.
    """

    def __init__(self, session_dir: Path) -> None:
        self._dir = session_dir / CHILDREN_DIR
        self._told: dict[str, _Told] = {}

    def read(self, blocks: Iterable[Block]) -> list[Child]:
        """Give each sub-agent its newest steps; return those with something new. Blocks for the reading of files.

        Raises:
            OSError: a transcript cannot be read.
        """
        children = [child for block in blocks for call in block.calls.values() for child in call.children]
        shown = [child for child in children if re.fullmatch(NAME, child.name)][-MAX_AGENTS:]
        for child in shown:
            told = self._told.get(child.name)
            if told is None or told.child is not child:
                self._told[child.name] = _Told(Story(bounds=NESTED), Journal(self._dir / child.name), child)
        names = {child.name for child in shown}
        self._told = {name: told for name, told in self._told.items() if name in names}
        return [told.child for told in self._told.values() if _read_on(told)]

    @property
    def are_running(self) -> bool:
        """Whether one of them may do more."""
        return any(told.child.ended_s is None for told in self._told.values())


def _read_on(told: _Told) -> bool:
    """Take in what a sub-agent has done since the last time; whether it has done anything."""
    if told.story.has_ended:
        return False
    while lines := told.journal.read():
        told.story.take(lines)
    if not told.story.changed():
        return False
    told.child.blocks = [block for block in told.story.blocks if block.step is not None]
    if told.child.ended_s is None:
        told.child.steps = max((block.step or 0 for block in told.child.blocks), default=0)
    return True
