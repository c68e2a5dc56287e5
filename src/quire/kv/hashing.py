"""Block hashes: equal hashes mean equal tokens in the block and in all before it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from struct import pack

import numpy as np

from quire.core.config import HashAlgo
from quire.core.request import PrefixDigest, Request

_IMAGE = b"\xfe\xff\xff\xffimage"
"""Its first four bytes are the token id -2, which no text has."""


class BlockHasher:
    """Hashes a request's blocks with one running digest, which is read after each block.

    Args:
        algo: "sha256" with 32 bytes is safe against all clients. "xxhash", XXH3 of 128 bits, takes
            a third of the time, needs its package, and is safe while clients do not know the seed.
        seed: 64 bits; other seeds give other hashes.
    """

    def __init__(self, block_size: int, algo: HashAlgo, seed: int) -> None:
        self._block_size = block_size
        self._block = np.dtype((np.void, 4 * block_size))
        self._seed = seed
        self._new_digest = _DIGESTS[algo](seed)
        self._unsalted = self._root("")

    def extend(self, request: Request) -> list[bytes]:
        """Hash the full blocks of `request.token_ids` that are not hashed yet.

        Returns:
            `request.block_hashes`, one hash per full block. It covers the seed, the request's salt,
            the content of its adapter, and all tokens up to the block's end, four bytes each. If
            the prompt is given as embeddings, it covers their bytes, too, and of each image in
            it where it lies and its digest.
        """
        hashes, tokens = request.block_hashes, request.token_ids
        start = len(hashes)
        count = len(tokens) // self._block_size - start
        if count <= 0:
            return hashes
        digest = request.prefix_digest
        if digest is None:
            salt, lora = request.options.cache_salt, request.options.lora_request
            root = self._unsalted
            if salt or lora:
                root = self._root(salt or "", lora.digest if lora else None)
            digest = request.prefix_digest = self._new_digest(root)
            for span in request.inputs.images:
                if span.whole not in (None, (span.start, span.end)):
                    # The first token sees the last one and all images.
                    digest.update(request.token_ids[: request.num_prompt_tokens].tobytes())
                    digest.update(_IMAGE + span.digest)
        update, read = digest.update, digest.digest
        blocks = np.frombuffer(tokens, self._block, count, start * self._block.itemsize).tolist()
        if request.inputs.prompt_embeds is None and not request.inputs.images:
            hashes += [update(block) or read() for block in blocks]  # `update` returns None
            return hashes
        for index, block in enumerate(blocks, start):
            update(block)
            update(self._beyond_tokens(request, index * self._block_size))
            hashes.append(read())
        return hashes

    def _beyond_tokens(self, request: Request, start: int) -> bytes:
        """Return what the block that begins at `start` depends on besides its tokens: their
        embeddings, or the images that begin in it.

        An image's mark begins with bytes that are no token id, so that no text can imitate it.
        """
        end = start + self._block_size
        embeds = request.inputs.prompt_embeds
        if embeds is not None:
            size = len(embeds) // request.num_prompt_tokens
            return embeds[start * size : end * size]
        return b"".join(
            _IMAGE + pack("<2Q", span.start, span.rows) + span.digest
            for span in request.inputs.images
            if start <= span.start < end
        )

    def _root(self, cache_salt: str, adapter: bytes | None = None) -> bytes:
        """Return a digest's first bytes: requests share blocks only with equal salt and adapter."""
        seed = self._seed.to_bytes(8, "little")
        head = b"quire:" + seed
        if adapter is not None:  # a fixed length, so that no salt can imitate it
            head = b"quire+adapter:" + seed + hashlib.sha256(adapter).digest()
        return hashlib.sha256(head + cache_salt.encode()).digest()


NewDigest = Callable[[bytes], PrefixDigest]
"""Makes a digest of the first bytes."""


def _sha256(_: int) -> NewDigest:
    return hashlib.sha256  # the root holds the seed


def _xxhash(seed: int) -> NewDigest:
    from xxhash import xxh3_128

    return lambda root: xxh3_128(root, seed)


_DIGESTS: dict[HashAlgo, Callable[[int], NewDigest]] = {"sha256": _sha256, "xxhash": _xxhash}
"""Algorithm → function of the seed."""
