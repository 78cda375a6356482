"""The process inside the box. Imports the wire and the standard library only.

`spawner` is the box's main process, starts commands and the guest; `__main__` → `server` is the guest; `relay` is
what the host executes to reach it.
"""
