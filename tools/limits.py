"""What a command met of its box's limits, in words for the model: answer and facts → **notes** → result."""

from collections.abc import Callable, Mapping

from sandbox.errors import BoxLost, LossReason
from sandbox.profiles import shown_bytes
from sandbox.requests import RunAnswer

IN_MEMORY = "what lies in /tmp, /home/agent and /dev/shm counts"
_SIZES = {"/tmp": "tmp_bytes", "/home/agent": "home_bytes", "/dev/shm": "shm_bytes"}


def limit_notes(answer: RunAnswer, facts: Mapping[str, str]) -> list[str]:
    """Return one line for each limit that the command met; `facts` are those of the guest."""
    notes = []
    if answer.oom_kills:
        killed = "1 process" if answer.oom_kills == 1 else f"{answer.oom_kills} processes"
        notes.append(
            f"[the kernel killed {killed}: the sandbox has {shown_memory(facts)} of memory, and {IN_MEMORY}; use less "
            "at once]"
        )
    if answer.refused_tasks:
        most = facts.get("pids_max", "")
        allowed = f"{most} processes and threads at once" if most.isdigit() else "no more at once"
        notes.append(f"[{answer.refused_tasks} times no process could be started: the sandbox may have {allowed}]")
    for path in answer.full:
        size = facts.get(_SIZES.get(path, ""), "")
        whole = f" ({shown_bytes(int(size))})" if size.isdigit() else ""
        elsewhere = "; /workspace has more room" if path != "/workspace" else ""
        notes.append(f"[{path} is full{whole}: remove what is not needed{elsewhere}]")
    return notes


def lost_to_a_limit(lost: BoxLost, facts: Callable[[], Mapping[str, str]]) -> str | None:
    """Return why a limit ended the whole box, for the model; None when something else did."""
    match lost.reason:
        case LossReason.OOM:
            has = f"it has {shown_memory(facts())}, and {IN_MEMORY}"
            return f"The sandbox ran out of memory and ended: {has}. Use less at once."
        case LossReason.DISK:
            return f"The sandbox was ended because it wrote too much: {lost.detail}. Remove what is not needed."
        case _:
            return None


def shown_memory(facts: Mapping[str, str]) -> str:
    """The box's memory as people write it."""
    limit = facts.get("memory_max", "")
    if limit.isdigit():
        return shown_bytes(int(limit))
    total, _, unit = facts.get("memory_total", "").partition(" ")
    return shown_bytes(int(total) * 1024) if total.isdigit() and unit == "kB" else "a bounded amount"
