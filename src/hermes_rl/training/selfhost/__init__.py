"""An engine of your own: SkyRL's Tinker API on this machine, in a Python environment apart.

Always true: nothing of SkyRL, JAX or torch is imported here; what must run in its interpreter stands in `inside/`.
"""
