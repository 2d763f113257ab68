"""A few groups of an environment with several models, before a training run is paid for: does it work at all?"""
