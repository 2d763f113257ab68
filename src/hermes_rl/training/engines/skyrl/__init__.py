"""The self-hosted engine: SkyRL's Tinker API on this machine, in a separate Python environment.

Always true: SkyRL, JAX and torch are never imported here; code that runs in SkyRL's interpreter is in `inside/`.
"""
