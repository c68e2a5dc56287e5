"""The tiny model and the server of the end-to-end tests, for this folder's own use."""

from tests.e2e.conftest import server, tiny_model

__all__ = ["server", "tiny_model"]
