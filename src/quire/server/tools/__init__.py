"""Reasoning and tool calls in a model's text: one short rule a format, whole and streamed alike."""
