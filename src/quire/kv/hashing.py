"""Chained block hashes: equal hashes mean equal tokens in the block and in all before it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from struct import iter_unpack

from quire.core.config import HashAlgo
from quire.core.errors import ConfigError
from quire.core.request import Request


class BlockHasher:
    """Hashes blocks of a request's tokens, one digest call a block.

    Args:
        algo: "sha256", 32 bytes, safe against anyone; or "xxhash", XXH3 of 128 bits, a quarter
            of the time, and safe as long as nobody who sends prompts knows the seed.
        seed: 64 bits. Hashes of another seed share nothing with these.

    Raises:
        ConfigError: the package of the algorithm is not installed.
    """

    def __init__(self, block_size: int, algo: HashAlgo, seed: int) -> None:
        self._block_size = block_size
        self._seed = seed
        self._digest = _DIGESTS[algo]()

    def root(self, cache_salt: str | None) -> bytes:
        """Where a request's chain begins; requests with another salt share no block."""
        salt = (cache_salt or "").encode()
        return hashlib.sha256(b"quire:" + self._seed.to_bytes(8, "little") + salt).digest()

    def extend(self, request: Request) -> list[bytes]:
        """Hash the full blocks of `request.token_ids` that are not hashed yet.

        Returns:
            `request.block_hashes`, a digest a full block. It covers the digest of the block
            before and the block's own tokens, four bytes each.
        """
        hashes, tokens, size = request.block_hashes, request.token_ids, self._block_size
        start = len(hashes)
        full = len(tokens) // size
        if start >= full:
            return hashes
        parent = hashes[-1] if hashes else self.root(request.cache_salt)
        digest, seed = self._digest, self._seed
        if full == start + 1:
            hashes.append(digest(parent + tokens[start * size : full * size].tobytes(), seed))
            return hashes
        data = tokens[start * size : full * size].tobytes()
        blocks = iter_unpack(f"{size * tokens.itemsize}s", data)
        hashes += [parent := digest(parent + block, seed) for (block,) in blocks]
        return hashes


Digest = Callable[[bytes, int], bytes]
"""Of data and a seed."""


def _sha256() -> Digest:
    sha256 = hashlib.sha256
    return lambda data, _: sha256(data).digest()  # the chain's root holds the seed


def _xxhash() -> Digest:
    try:
        from xxhash import xxh3_128_digest
    except ImportError:
        raise ConfigError(
            "the block hash 'xxhash' needs the package xxhash.",
            fix="Install it, or use --prefix-caching-hash-algo sha256.",
            param="prefix_caching_hash_algo",
        ) from None
    digest: Digest = xxh3_128_digest
    return digest


_DIGESTS: dict[HashAlgo, Callable[[], Digest]] = {"sha256": _sha256, "xxhash": _xxhash}
