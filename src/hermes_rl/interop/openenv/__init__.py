"""OpenEnv servers as environments."""
