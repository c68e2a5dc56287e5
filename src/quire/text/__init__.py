"""Text to token ids and back: tokenizers, detokenization, stop strings, chat templates."""
