"""Tools for coding agents, and the MCP server that offers them."""
