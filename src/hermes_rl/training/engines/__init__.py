"""Engines that train: the protocol, and one package for each engine."""
