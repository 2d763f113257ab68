"""vLLM servers as the sampler: new weights are loaded into them while they run."""
