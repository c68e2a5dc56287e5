"""A process that decodes images: `python -m quire.frontend.images.worker`. No torch, no numpy.

Frames come on stdin and leave on stdout (see `pipe`): first a `Setup`, then the bytes of a file for
each `Prepared`, or the reason why it is refused.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import BinaryIO

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.images import ImageConfig, VisionConfig
from quire.core.log import setup_logging
from quire.frontend.images.prepare import MAX_MEMORY, Prepared, refused, timed
from quire.frontend.workers.pipe import answer_all, read_frame
from quire.system.limits import confine
from quire.system.parent import end_with

logger = logging.getLogger(__name__)

NICENESS = 10
"""A step waits for each of its threads, so a process that takes a core from one delays all streams.
With this, beside full cores, it gets a tenth of one."""

CPU_SECONDS = 30.0
"""For one image. A file of a few kilobytes can take hours to decode. Time without a core does not
count, so a busy machine refuses no image that it accepts when it is idle."""


class Setup(msgspec.Struct):
    """How images are prepared."""

    vision: VisionConfig
    images: ImageConfig


def answer(image: bytes, setup: Setup) -> Prepared | str:
    """Return an image as the tower reads it, or why it is refused."""
    try:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # then SIGPROF ends the process
        return timed(image, setup.vision, setup.images)
    except InvalidRequestError as error:
        return str(error)
    except MemoryError:
        return str(refused(f"decoding it takes more than {MAX_MEMORY >> 30} GiB of memory"))
    except Exception as error:
        logger.exception("an image could not be prepared")
        return str(refused(type(error).__name__))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def main(source: BinaryIO, sink: BinaryIO) -> int:
    """Answer until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    end_with(os.getppid())
    setup_logging()
    setup = msgspec.msgpack.decode(read_frame(source), type=Setup)
    confine(MAX_MEMORY)
    os.nice(NICENESS)
    decoder = msgspec.msgpack.Decoder(bytes)
    return answer_all(source, sink, lambda data: answer(decoder.decode(data), setup))


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of native code must not mix with the answers
    sys.exit(main(sys.stdin.buffer, answers))
