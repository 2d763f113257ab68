"""The routes of the inference server, in the forms of OpenAI, vLLM and SGLang."""
