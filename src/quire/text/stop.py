"""Stop strings in streamed text."""

from __future__ import annotations

from collections import deque


class StopStringMatcher:
    """Finds the first stop string in text that arrives in pieces.

    The match is the one that ends first and, of those, the longest; how the text is cut into
    pieces does not matter. Text that may turn out to begin a stop string is held back, and
    nothing else is. Time is proportional to the text, whatever the strings (Aho & Corasick,
    "Efficient string matching", 1975).

    Args:
        stops: the strings; none of them empty.
        include: whether the stop string is part of the output (`include_stop_str_in_output`).
    """

    def __init__(self, stops: list[str], include: bool = False) -> None:
        if "" in stops:
            raise ValueError("a stop string must not be empty")
        self._include = include
        self._held = ""
        self._state = 0
        self._next, self._fallback, self._depth, self._found = _automaton(stops)
        self._matched: str | None = None

    def push(self, delta: str) -> tuple[str, str | None]:
        """(the text that may be shown, the stop string that `delta` completed or None).

        After a match there is no more output: all that follows is dropped.
        """
        if self._matched is not None:
            return "", self._matched
        if len(self._next) == 1:
            return delta, None
        for index, char in enumerate(delta):
            self._state = state = self._step(char)
            stop = self._found[state]
            if stop is not None:
                self._matched = stop
                text = self._held + delta[: index + 1]
                self._held = ""
                return (text if self._include else text[: -len(stop)]), stop
        text = self._held + delta
        shown = len(text) - self._depth[self._state]
        self._held = text[shown:]
        return text[:shown], None

    def flush(self) -> str:
        """The text held back, once no more comes."""
        text, self._held, self._state = self._held, "", 0
        return text

    def _step(self, char: str) -> int:
        state = self._state
        while (following := self._next[state].get(char)) is None:
            if state == 0:
                return 0
            state = self._fallback[state]
        return following


def _automaton(
    stops: list[str],
) -> tuple[list[dict[str, int]], list[int], list[int], list[str | None]]:
    """Per state: the next state by character, where to go on a mismatch, how many characters
    of a stop string have been seen, and the longest stop string that ends here."""
    following: list[dict[str, int]] = [{}]
    depth, fallback = [0], [0]
    found: list[str | None] = [None]
    for stop in stops:
        state = 0
        for char in stop:
            if char not in following[state]:
                following[state][char] = len(following)
                following.append({})
                depth.append(depth[state] + 1)
                fallback.append(0)
                found.append(None)
            state = following[state][char]
        found[state] = stop
    queue = deque(following[0].values())
    while queue:
        state = queue.popleft()
        for char, child in following[state].items():
            queue.append(child)
            other = fallback[state]
            while other and char not in following[other]:
                other = fallback[other]
            fallback[child] = following[other].get(char, 0)
            found[child] = found[child] or found[fallback[child]]
    return following, fallback, depth, found
