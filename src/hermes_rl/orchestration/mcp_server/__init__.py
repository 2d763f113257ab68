"""The ten `rl_*` tools over MCP, with runs as resources. The `mcp` package is imported only when the server starts."""
