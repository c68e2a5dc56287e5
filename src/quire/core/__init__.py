"""The vocabulary that every layer speaks: configuration, requests, batches, messages, errors.

No torch here: the API process imports this room and must start in milliseconds.
"""
