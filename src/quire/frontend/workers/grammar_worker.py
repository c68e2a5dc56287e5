"""A process that checks structures: `python -m quire.frontend.workers.grammar_worker`. No torch.

llguidance is native code, and compiles what clients send. Here it can crash, hang, or take all the
memory it may, and end nothing but this process. Frames (see `pipe`) come on standard input and
leave on standard output: first a `Setup`, answered with `READY` once it can begin, then a
`Checked` for each `StructuredOutputsParams`.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.log import setup_logging
from quire.core.structured_outputs import StructuredOutputsParams, WrittenStructure
from quire.frontend.workers.pipe import frame, read_frame
from quire.system.parent import end_with
from quire.text.grammar import checked
from quire.text.grammar_writer import refused
from quire.text.vocabulary import FIRST_SPECIAL, byte_tokenizer

logger = logging.getLogger(__name__)

READY = "ready"
CPU_SECONDS = 5.0
"""For one structure, after which the system ends the process. Time on the CPU, which does not pass
faster where others want it, too. Writing the grammars takes 0.5 s at worst, and llguidance's own
bounds let through what takes it longer: more than this is refused."""
ADDRESS_BYTES = 2**30
"""All that the process may have; 0.1 GiB are its code and what it begins with."""
STACK_BYTES = 4 * 2**20
"""Half of what the engine core's threads have, so that what is found to be good has room there."""

Check = Callable[[StructuredOutputsParams], WrittenStructure | None]
"""Returns what is written for the engine core; raises `InvalidRequestError` where a structure
cannot be served."""


class Setup(msgspec.Struct):
    """The model's control tokens: their ids by their names."""

    specials: dict[str, int] = {}


class Checked(msgspec.Struct):
    """What became of a structure; without an error it is good."""

    error: str | None = None
    error_param: str | None = None
    unexpected: bool = False
    """The error is no fault of the structure's."""
    written: WrittenStructure | None = None
    """Of a good one, for the engine core, which would hold up its steps by writing it."""

    @property
    def num_bytes(self) -> int:
        written = self.written
        return 0 if written is None else len(written.grammars) + len(written.plain or "")


def error_of(checked: Checked) -> Exception | None:
    """What to raise for it, in the process that asked."""
    if checked.error is None:
        return None
    if checked.unexpected:
        return RuntimeError(f"The structure could not be checked: {checked.error}")
    return InvalidRequestError(checked.error, param=checked.error_param)


def answer(check: Check, wanted: StructuredOutputsParams) -> Checked:
    try:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # its signal ends the process
        return Checked(written=check(wanted))
    except InvalidRequestError as error:
        return Checked(str(error), error.param)
    except (OverflowError, RecursionError) as error:  # of numbers and nesting beyond all use
        refusal = refused(str(error), wanted)
        return Checked(str(refusal), refusal.param)
    except MemoryError:
        os.abort()  # as native code does that gets none
    except Exception as error:
        logger.exception("a structure could not be checked")
        return Checked(f"{type(error).__name__}: {error}", unexpected=True)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def main(source: BinaryIO, sink: BinaryIO, check: Check | None = None) -> int:
    """Answer until the input ends.

    Args:
        check: instead of llguidance's.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    end_with(os.getppid())
    setup_logging()
    setup = msgspec.msgpack.decode(read_frame(source), type=Setup)
    check = check or _checks(setup)
    _bound(resource.RLIMIT_AS, ADDRESS_BYTES)
    _bound(resource.RLIMIT_STACK, STACK_BYTES)
    _bound(resource.RLIMIT_CORE, 0)  # a client is not to fill the disk
    with suppress(OSError):  # where there is such a file: who is ended first if memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    decoder = msgspec.msgpack.Decoder(StructuredOutputsParams)
    sink.write(frame(READY))
    sink.flush()
    while data := read_frame(source):
        sink.write(frame(answer(check, decoder.decode(data))))
        sink.flush()
    return 0


def _checks(setup: Setup) -> Check:
    tokenizer = byte_tokenizer(len(setup.specials))
    specials = {name: token for token, name in enumerate(setup.specials, FIRST_SPECIAL)}
    return partial(checked, tokenizer, specials=specials, others=setup.specials)


def _bound(what: int, most: int) -> None:
    """Let the process have no more than `most`, or what it may have already."""
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, hard))


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what native code may print is no answer
    sys.exit(main(sys.stdin.buffer, answers))
