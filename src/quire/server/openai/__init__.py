"""OpenAI's endpoints: typed requests in, typed responses out."""
