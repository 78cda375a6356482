"""Amounts: text for people, whole cents inside."""


def parse_amount(text):
    """Cents from text such as "12", "12.5", "12.50" or "-3.07"."""
    sign = -1 if text.startswith("-") else 1
    whole, _, fraction = text.lstrip("+-").partition(".")
    if not whole.isdigit() or len(fraction) > 2 or (fraction and not fraction.isdigit()):
        raise ValueError(f"not an amount: {text!r}")
    cents = int(fraction or "0")
    return sign * (int(whole) * 100 + cents)


def format_amount(cents):
    """Text such as "12.50" from cents."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02d}"
