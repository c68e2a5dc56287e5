"""HTTP: OpenAI's API over an `AsyncLLM`. No torch: the API process must start in milliseconds."""
