"""Accounts that are kept in cents, and statements printed from them."""
