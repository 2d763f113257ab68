"""The modules of hermes-agent and Atropos that environment files import; `_hermes_rl_imports.MODULES` has their names.

`__all__` of each module lists the names it provides; their classes are hermes-rl's own.
"""
