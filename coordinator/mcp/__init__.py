"""Boxes for MCP clients: `sandhog mcp`. Read: served_box, requests, server, http."""
