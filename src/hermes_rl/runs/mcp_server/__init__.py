"""The ten tools over MCP, with runs as resources. The extra `mcp` is imported only when the server is started."""
