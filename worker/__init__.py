"""The worker room: decides whether a call runs, and runs it in the session's box.

Read in this order: `contract` → `app` → `tasks` → `gates` → `boxes` → `node`. Threads, no event loop.
"""
