"""A statement: every entry with the balance after it."""

from ledger.money import format_amount


def statement(account):
    """The account as lines of text."""
    lines = [f"Account of {account.owner}"]
    balance = 0
    for reason, cents in account.entries:
        balance += cents
        lines.append(f"{reason:<20}{format_amount(cents):>12}{format_amount(balance):>12}")
    return "\n".join(lines)
