import pytest

from ledger.money import format_amount, parse_amount


@pytest.mark.parametrize(
    ("text", "cents"),
    [("12", 1200), ("12.50", 1250), ("12.5", 1250), ("0.05", 5), ("-3.07", -307)],
)
def test_an_amount_is_parsed_to_cents(text, cents):
    assert parse_amount(text) == cents


@pytest.mark.parametrize("text", ["", "twelve", "1.234", "1.2.3", "--"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="not an amount"):
        parse_amount(text)


def test_cents_are_printed_with_two_places():
    assert [format_amount(cents) for cents in (0, 5, 1250, -307)] == ["0.00", "0.05", "12.50", "-3.07"]
