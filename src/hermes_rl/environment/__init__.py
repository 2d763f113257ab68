"""Environments: the base class that authors subclass, its configuration, and its command line."""
