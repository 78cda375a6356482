"""Terminals that reach into boxes: orders (doors) → one channel → its pipes in the box. Read in this order."""
