"""The types that all rooms share: configuration, requests, batches, messages, errors.

No torch: the API process imports this room and must start in milliseconds.
"""
