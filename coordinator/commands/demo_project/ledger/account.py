"""An account: entries in order, a balance that never goes below its limit."""

from ledger.money import parse_amount


class Overdrawn(Exception):
    """An entry would take the balance below the limit."""


class Account:
    """Entries of one owner, newest last."""

    def __init__(self, owner, limit="0"):
        self.owner = owner
        self.limit_cents = -parse_amount(limit)
        self.entries = []

    @property
    def balance_cents(self):
        return sum(cents for _, cents in self.entries)

    def book(self, reason, amount):
        """Adds an entry; a negative amount takes money out."""
        cents = parse_amount(amount)
        if cents < 0 and self.balance_cents + cents < self.limit_cents:
            raise Overdrawn(f"{self.owner}: {reason}")
        self.entries.append((reason, cents))
