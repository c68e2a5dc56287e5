"""From an image's address or file to spans of a prompt."""
