"""The time that rows take from one machine's stage to the next one's, over this machine's loopback.

The far end is `python -m quire.bench.hop SOCKET ROWS WIDTH DTYPE`, which sends all rows back.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time

from quire.core.dtypes import dtype_of
from quire.core.errors import QuireError
from quire.parallel.handshake import set_options
from quire.parallel.stage import FarLink, RowShape

ROUNDS = 400
STEPS = 2
"""Steps in flight."""


def hop_ms(rows: int, width: int, dtype: str) -> float:
    """Return the milliseconds of one hop of `rows` rows: the median of half a round trip."""
    import numpy as np

    shape = RowShape(rows, width, dtype_of(dtype), STEPS)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as near,
        listener.accept()[0] as far,
    ):
        for end in (near, far):
            set_options(end)
        words = map(str, (far.fileno(), rows, width, dtype))
        command = [sys.executable, "-m", "quire.bench.hop", *words]
        with subprocess.Popen(command, pass_fds=(far.fileno(),)) as process:
            far.close()
            link = FarLink(near.fileno(), shape, receives=True)
            sent = np.zeros((rows, width), shape.dtype)
            times = []
            try:
                for step in range(1, ROUNDS + 1):
                    began = time.perf_counter()
                    link.send(step, sent)
                    link.receive(step)
                    times.append(time.perf_counter() - began)
            except EOFError as error:
                raise QuireError(f"The other end of the hop has ended: {error}.") from None
            finally:
                link.close()
                process.wait()
    return 1e3 * statistics.median(times[ROUNDS // 10 :]) / 2


def main(argv: list[str]) -> int:
    """Send rows back until the connection ends."""
    end, rows, width = map(int, argv[:3])
    link = FarLink(end, RowShape(rows, width, dtype_of(argv[3]), STEPS), receives=True)
    try:
        for step in range(1, ROUNDS + 1):
            link.send(step, link.receive(step))
    except EOFError:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
