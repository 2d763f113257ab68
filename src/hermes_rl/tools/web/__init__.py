"""The `web` toolset: search with one of five providers, and read the pages found."""
