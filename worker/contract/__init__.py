"""What coordinator and worker agree on: orders, outcomes, key names, Lua scripts, the reply stream.

Importing it imports neither Docker nor anything of how a node works.
"""
