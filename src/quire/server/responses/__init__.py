"""OpenAI's Responses API: chats whose answers are items, kept for the next turn."""
