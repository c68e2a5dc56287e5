"""Stop strings in streamed text."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class StopStrings:
    """A request's stop strings, sorted for search, shared by its sequences.

    Args:
        stops: the strings; none of them empty.
    """

    def __init__(self, stops: list[str]) -> None:
        if "" in stops:
            raise ValueError("a stop string must not be empty")
        self._sorted = sorted(set(stops))
        self._reversed = sorted({stop[::-1] for stop in stops})
        self._prefixes = _prefixes(self._reversed)
        self.first = frozenset(stop[0] for stop in stops)
        """The characters that stop strings begin with."""

    def longest_begun(self, text: str) -> str:
        """Return the longest end of `text` that begins or is a stop string.

        Takes at most len(text) binary searches. A caller that adds one character at a time to the
        last result needs two per character on average.
        """
        while text and not self._is_begun(text):
            text = text[1:]
        return text

    def longest_at_end(self, text: str) -> str | None:
        """Return the longest stop string that `text` ends with."""
        end = text[::-1]
        index = bisect_right(self._reversed, end) - 1
        while index >= 0:
            if end.startswith(self._reversed[index]):
                return self._reversed[index][::-1]
            index = self._prefixes[index]
        return None

    def _is_begun(self, text: str) -> bool:
        index = bisect_left(self._sorted, text)
        return index < len(self._sorted) and self._sorted[index].startswith(text)


class StopStringMatcher:
    """Finds the first stop string in text that arrives in pieces.

    The match is the one that ends first and, of those, the longest, no matter how the text is split
    into pieces. Only text that may be the beginning of a stop string is held back.

    Args:
        stops: the strings; none of them empty.
        include: whether the stop string is part of the output (`include_stop_str_in_output`).
    """

    def __init__(self, stops: StopStrings | list[str], include: bool = False) -> None:
        self._stops = stops if isinstance(stops, StopStrings) else StopStrings(stops)
        self._include = include
        self._held = ""
        self._matched: str | None = None

    def push(self, delta: str) -> tuple[str, str | None]:
        """Return (the text that may be shown, the stop string that `delta` completed or None).

        After a match, all further text is dropped.
        """
        if self._matched is not None:
            return "", self._matched
        stops = self._stops
        if not self._held and stops.first.isdisjoint(delta):
            return delta, None
        text = self._held + delta
        begun = self._held  # the next stop string to end is the end of this text
        for end, char in enumerate(delta, len(self._held) + 1):
            if not begun and char not in stops.first:
                continue
            begun = stops.longest_begun(begun + char)
            if (stop := stops.longest_at_end(begun)) is not None:
                self._matched, self._held = stop, ""
                return text[: end if self._include else end - len(stop)], stop
        self._held = begun
        return text[: len(text) - len(begun)], None

    def flush(self) -> str:
        """Return the held-back text, after the last token."""
        text, self._held = self._held, ""
        return text


def _prefixes(texts: list[str]) -> list[int]:
    """Return for each of the sorted `texts` the index of the longest other text that is its prefix,
    or -1."""
    found: list[int] = []
    for index, text in enumerate(texts):
        other = index - 1
        while other >= 0 and not text.startswith(texts[other]):
            other = found[other]
        found.append(other)
    return found
