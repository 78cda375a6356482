"""The way out of a box that has no network: the worker carries connections to hosts that are allowed by name.

Read `rules` (which names and ports), `addresses` (what a name may resolve to), `dial` (resolve, judge, connect),
`head` and `body` (the HTTP of the proxy port), `stream` and `carrier` (many connections over one link).
"""
