"""Environments: the base class authors subclass, its configuration, and the modes that run one."""
