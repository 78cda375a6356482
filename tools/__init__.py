"""The tools room: what a call means – its arguments, its schema for the model, its result, and who may allow it.

Every import runs down: coordinator → worker → **tools** → sandbox. Read `base` (the shapes), then `read` (the
simplest tool) and `bash` (the richest), `registry` and `schema` (how a model's call becomes arguments), `cutting`
(budgets), and `permission` with `shell` and `commands` (what a command does, as far as its text tells).
Tools of a user's come by `loading`: `own` makes them of functions, `signature` reads those, `context` is what they get.
"""
