"""The log-probabilities at one position, which become objects only when they are read."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping

from quire.core.messages import TokenLogprobs
from quire.core.outputs import Logprob, PositionLogprobs, RequestOutput
from quire.text.tokenizers.tokenizer import Tokenizer


class LazyPosition(Mapping[int, Logprob]):
    """Equal to the result of `position_logprobs`, which is called at the first access.

    A step of many sequences has ten thousand log-probabilities. To convert them all at once would
    block the event loop, so the answers convert them, in turns.
    """

    __slots__ = ("_found", "_made", "_tokenizer")

    def __init__(self, found: TokenLogprobs, tokenizer: Tokenizer) -> None:
        self._found = found
        self._tokenizer = tokenizer
        self._made: dict[int, Logprob] | None = None

    @property
    def made(self) -> dict[int, Logprob]:
        if self._made is None:
            self._made = position_logprobs(self._tokenizer, self._found)
        return self._made

    def __len__(self) -> int:
        return len(self._made or set(self._found.token_ids))

    def __iter__(self) -> Iterator[int]:
        return iter(self.made)

    def __getitem__(self, token: int) -> Logprob:
        return self.made[token]

    def items(self) -> ItemsView[int, Logprob]:
        return self.made.items()


def with_dicts(output: RequestOutput) -> RequestOutput:
    """Give users the log-probabilities of `output` as dicts."""
    for completion in output.outputs:
        if completion.logprobs is not None:
            completion.logprobs = [_dict(each) for each in completion.logprobs]
    return output


def _dict(position: PositionLogprobs) -> PositionLogprobs:
    return position.made if isinstance(position, LazyPosition) else position


def position_logprobs(tokenizer: Tokenizer, found: TokenLogprobs) -> dict[int, Logprob]:
    """Return the chosen token, then the likeliest in order, then the others, with their texts."""
    num_ranked = len(found.token_ids) - found.num_named

    def entry(i: int, rank: int | None) -> Logprob:
        text = tokenizer.token_bytes(found.token_ids[i]).decode(errors="replace")
        return Logprob(found.logprobs[i], rank, text)

    result = {found.token_ids[0]: entry(0, found.rank)}
    for at in range(1, len(found.token_ids)):
        if found.token_ids[at] not in result:
            result[found.token_ids[at]] = entry(at, at if at < num_ranked else None)
    return result
