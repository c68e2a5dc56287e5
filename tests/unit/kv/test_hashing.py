from __future__ import annotations

import hashlib
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.config import HashAlgo
from quire.core.images import ImageSpan
from quire.core.lora import LoRARequest
from quire.core.options import RequestInputs, RequestOptions
from quire.core.request import EMBEDDED, Request
from quire.core.sampling_params import SamplingParams
from quire.kv.hashing import BlockHasher

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=100)
ALGOS: list[HashAlgo] = ["sha256", "xxhash"]


def hasher(size: int = 8, algo: HashAlgo = "sha256", seed: int = 0) -> BlockHasher:
    return BlockHasher(size, algo, seed)


def request(
    token_ids: list[int], salt: str | None = None, lora: LoRARequest | None = None
) -> Request:
    inputs = RequestInputs(RequestOptions(cache_salt=salt, lora_request=lora))
    return Request(
        "r", token_ids, SamplingParams(), arrival_time=0, max_model_len=999, inputs=inputs
    )


@pytest.mark.parametrize("algo", ALGOS)
@given(tokens, tokens, st.sampled_from([8, 16, 32]))
def test_equal_hashes_exactly_where_prefixes_are_equal(
    algo: HashAlgo, a: list[int], b: list[int], size: int
) -> None:
    b = a[: len(a) // 2] + b
    ours, theirs = (hasher(size, algo, 3).extend(request(x)) for x in (a, b))
    assert len(ours) == len(a) // size
    for i, (h, g) in enumerate(zip(ours, theirs, strict=False)):
        assert (h == g) == (a[: (i + 1) * size] == b[: (i + 1) * size])


@pytest.mark.parametrize("algo", ALGOS)
@given(tokens, st.lists(st.integers(0, 100), max_size=4))
def test_growing_gives_the_same_hashes_as_all_at_once(
    algo: HashAlgo, token_ids: list[int], cuts: list[int]
) -> None:
    growing = request([])
    for cut in [*sorted(cuts), 100]:
        growing.token_ids.extend(token_ids[growing.num_tokens : cut])
        hasher(8, algo).extend(growing)
    assert growing.block_hashes == hasher(8, algo).extend(request(token_ids))


@pytest.mark.parametrize("algo", ALGOS)
def test_salts_and_seeds_share_nothing(algo: HashAlgo) -> None:
    hashes = [
        set(hasher(16, algo, seed).extend(request([1] * 64, salt)))
        for salt in (None, "a", "b")
        for seed in (0, 1, 2**64 - 1)
    ]
    assert len(set.union(*hashes)) == 9 * 4


@pytest.mark.parametrize("algo", ALGOS)
def test_adapters_share_nothing_unless_their_content_is_the_same(algo: HashAlgo) -> None:
    def hashes(salt: str | None, lora: LoRARequest | None) -> set[bytes]:
        return set(hasher(16, algo).extend(request([1] * 64, salt, lora)))

    adapters = [LoRARequest("a", i, "", bytes([i])) for i in range(1, 3)]
    each = [hashes(salt, lora) for salt in (None, "a") for lora in (None, *adapters)]
    assert len(set.union(*each)) == 6 * 4
    assert hashes(None, LoRARequest("b", 9, "", bytes([1]))) == each[1]


def test_a_hash_covers_all_tokens_before_four_bytes_each() -> None:
    first, second = hasher(8).extend(request(list(range(17))))
    root = hashlib.sha256(b"quire:" + bytes(8)).digest()
    assert first == hashlib.sha256(root + array("i", range(8)).tobytes()).digest()
    assert second == hashlib.sha256(root + array("i", range(16)).tobytes()).digest()


def test_a_block_of_embeddings_has_the_hash_of_its_own_rows() -> None:
    hashes = []
    for last in (b"x", b"y"):
        rows = [b"row %d" % i for i in range(8)] + [last * 5]
        given = Request(
            "a", [EMBEDDED] * 9, SamplingParams(), arrival_time=0, max_model_len=99,
            inputs=RequestInputs(prompt_embeds=b"".join(rows)),
        )  # fmt: skip
        hashes.append(hasher().extend(given)[:1])
    assert hashes[0] == hashes[1] != []


@pytest.mark.parametrize("differs", range(16))
def test_a_hash_covers_each_embedding_up_to_its_blocks_end(differs: int) -> None:
    hashes = []
    for row in (b"x", b"y"):
        rows = [b"r"] * 16
        rows[differs] = row
        given = Request(
            "a", [EMBEDDED] * 16, SamplingParams(), arrival_time=0, max_model_len=99,
            inputs=RequestInputs(prompt_embeds=b"".join(rows)),
        )  # fmt: skip
        hashes.append(hasher(4).extend(given))
    assert [a == b for a, b in zip(*hashes, strict=True)] == [i < differs // 4 for i in range(4)]


def test_tokens_behind_embeddings_are_hashed_too() -> None:
    hashes = []
    for token in (7, 8):
        given = Request(
            "a", [EMBEDDED] * 4, SamplingParams(), arrival_time=0, max_model_len=99,
            inputs=RequestInputs(prompt_embeds=b"rows"),
        )  # fmt: skip
        given.token_ids.extend([token] * 4)
        hashes.append(hasher(4).extend(given))
    assert [a == b for a, b in zip(*hashes, strict=True)] == [True, False]


@given(st.integers(0, 50), st.integers(1, 40), st.sampled_from([8, 16]))
def test_images_part_exactly_the_blocks_from_their_first_row_on(
    start: int, rows: int, size: int
) -> None:
    """Equal tokens: another image, and the same image a token later."""

    def hashes(first: int, digest: bytes) -> list[bytes]:
        asked = request([7] * 96)
        asked.inputs = RequestInputs(images=(ImageSpan(first, rows, digest, None, (1, 1), b""),))
        return hasher(size).extend(asked)

    ours = hashes(start, b"a" * 32)
    for theirs in (hashes(start, b"b" * 32), hashes(start + 1, b"a" * 32)):
        for index, (ours_hash, theirs_hash) in enumerate(zip(ours, theirs, strict=True)):
            assert (ours_hash == theirs_hash) == ((index + 1) * size <= start)


def test_a_prompt_whose_first_token_sees_the_last_is_hashed_whole() -> None:
    """Also its images, and what follows the prompt is not."""

    def hashes(last: int, then: int, digest: bytes = b"a" * 32) -> list[bytes]:
        asked = request([7] * 11 + [last])
        spans = (ImageSpan(4, 4, digest, None, (1, 1), b"", (0, 12)),)
        asked.inputs = RequestInputs(images=spans)
        asked.token_ids.extend([then] * 4)
        return hasher(4).extend(asked)

    ours = hashes(7, 7)
    for others in (hashes(8, 7), hashes(7, 7, b"b" * 32)):
        assert [a == b for a, b in zip(ours, others, strict=True)] == [False] * 4
    assert [a == b for a, b in zip(ours, hashes(7, 8), strict=True)] == [True] * 3 + [False]
