"""Adapters that run environments inside the trainers of other projects, one module each.

A trainer's package is imported only by its own module. All of them host the environment in the trainer's process
(`environment_host`) and sample from the trainer's own weights.
"""
