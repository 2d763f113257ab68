"""vLLM servers as the sampler: each new set of weights is loaded into them while they run."""
