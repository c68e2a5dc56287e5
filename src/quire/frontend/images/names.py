"""Look up the addresses of hosts, for no longer than a caller waits.

Nothing ends a look-up whose resolver is stuck. Each runs in a thread of its own, one per host, so a
stuck name holds one thread however often it is asked for.
"""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future


class Names:
    """Looks names up. Callers that want the same name at once share a look-up.

    The caller bounds the number of names.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: dict[str, Future[list[str]]] = {}

    def addresses(self, host: str, seconds: float) -> list[str]:
        """Return the addresses of a host.

        Raises:
            OSError: it has none.
            TimeoutError: they are not known in time.
        """
        with self._lock:
            found = self._begun.get(host)
            if found is None:
                found = Future()
                threading.Thread(
                    target=self._look_up, args=(host, found), name="names", daemon=True
                ).start()
                self._begun[host] = found
        return found.result(seconds)

    def _look_up(self, host: str, found: Future[list[str]]) -> None:
        try:
            entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            result, error = [str(entry[4][0]) for entry in entries], None
        except BaseException as caught:
            result, error = [], caught
        with self._lock:
            del self._begun[host]
        if error is None:
            found.set_result(result)
        else:
            found.set_exception(error)
