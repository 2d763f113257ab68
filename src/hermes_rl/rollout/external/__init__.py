"""External agents: programs that run in the rollout's sandbox and reach only the gateway."""
