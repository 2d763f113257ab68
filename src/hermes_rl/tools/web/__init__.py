"""The `web` toolset: searching with one of five providers, and reading the pages found."""
