"""Clients of MCP servers on a node. Read: entry, clients, connection, lines, http, process, box_pipe, results, naming.

The SDK is asynchronous, the node is not: one owned thread has the one event loop for all of it (`loop`).
"""
