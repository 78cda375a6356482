import pytest

from ledger.account import Account, Overdrawn
from ledger.statement import statement


def test_the_balance_is_the_sum_of_the_entries():
    account = Account("Ada")
    account.book("salary", "100")
    account.book("coffee", "-2.50")
    assert account.balance_cents == 9750


def test_an_entry_below_the_limit_is_refused():
    account = Account("Ada", limit="10")
    with pytest.raises(Overdrawn):
        account.book("bicycle", "-10.01")


def test_a_statement_shows_each_balance():
    account = Account("Ada")
    account.book("salary", "100")
    account.book("lunch", "-12.5")
    assert statement(account).splitlines()[-1].split() == ["lunch", "-12.50", "87.50"]
