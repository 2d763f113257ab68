"""Discover environments by reading their source files, never by running them."""
