"""Low-rank adapters: read from PEFT's folders, and stored for the layers that add them."""
