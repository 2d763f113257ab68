"""Models on this machine without a GPU: the small model of the quickstart, and a llama.cpp server for any GGUF file."""
