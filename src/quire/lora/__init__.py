"""Low-rank adapters: read from PEFT's folders, and held for the layers that add them."""
