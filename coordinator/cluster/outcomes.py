"""What is said of calls whose node does not say it: settle, execute → **outcomes** → budget."""

from collections.abc import Sequence

from worker.contract.orders import CallKey, CallOrder, CallOutcome, Fate

BY_A_PERSON = "A person cancelled this call"


def cancelled_outcome(key: CallKey, reason: str) -> CallOutcome:
    """Return the outcome of a call that was cancelled and whose own words are not to be had."""
    return CallOutcome(
        key=key,
        fate=Fate.RAN,
        reason=reason,
        result={"status": "error", "text": "", "error_code": "CANCELLED", "error_message": reason},
    )


def when_cancelled(
    key: CallKey, said: CallOutcome | None, *, is_alone: bool, never_begins: bool = False
) -> CallOutcome:
    """Return the outcome of a call that was cancelled, with who did that.

    Args:
        key: The call's.
        said: What its node said that it came to; None where nothing was heard in time.
        is_alone: A person cancelled this call, and not its session.
        never_begins: It is certain that it did not run, and never will.
    """
    who, what = (BY_A_PERSON, "it") if is_alone else ("The session was cancelled", "this call")
    if never_begins:
        return cancelled_outcome(key, f"{who} before {what} ran.")
    if said is None:
        return cancelled_outcome(key, f"{who} while {what} ran; it may have run in part.")
    result = said.result or {}
    if not is_alone or result.get("error_code") != "CANCELLED":
        return said
    words = f"{BY_A_PERSON}. {result.get('error_message')}"
    return said.model_copy(update={"result": {**result, "error_message": words}})


def unknown(order: CallOrder, why: str) -> CallOutcome:
    """Return the outcome of a call of which nobody can tell whether it ran."""
    return CallOutcome(key=order.key, fate=Fate.UNKNOWN, reason=f"The call may have run: {why}.")


def did_not_run(orders: Sequence[CallOrder], reason: str) -> list[CallOutcome]:
    """Return the outcomes of calls that never ran and will not be sent again."""
    return [
        CallOutcome(
            key=order.key,
            fate=Fate.DID_NOT_RUN,
            reason=f"The call did not run: {reason}. It is safe to ask for it again.",
        )
        for order in orders
    ]
