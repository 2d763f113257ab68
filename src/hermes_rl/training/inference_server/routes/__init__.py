"""The routes of the inference server, a file each for OpenAI's, vLLM's and SGLang's forms."""
