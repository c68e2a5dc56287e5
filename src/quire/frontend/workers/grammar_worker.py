"""A process that checks structures: `python -m quire.frontend.workers.grammar_worker`. No torch.

llguidance is native code and compiles what clients send. If it crashes, hangs or runs out of memory
here, it ends only this process. Frames (see `pipe`) come on stdin, answers leave on stdout: first
`READY` for a `Setup`, then one `Checked` per `StructuredOutputsParams`.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.log import setup_logging
from quire.core.structured_outputs import StructuredOutputsParams, WrittenStructure
from quire.frontend.workers import grammar_messages as messages
from quire.frontend.workers.pipe import answer_all, frame, read_frame
from quire.system.limits import bound, confine
from quire.system.parent import end_with
from quire.text.grammar import checked
from quire.text.structures import refused
from quire.text.tokenizers.vocabulary import FIRST_SPECIAL, byte_tokenizer

logger = logging.getLogger(__name__)

STACK_BYTES = 4 * 2**20
"""Half the stack of the engine core's threads, so that a valid structure fits there."""

Check = Callable[[StructuredOutputsParams], WrittenStructure | None]
"""Returns the structure written for the engine core; raises `InvalidRequestError` if it cannot be
served."""


def answer(check: Check, wanted: StructuredOutputsParams) -> messages.Checked:
    try:
        signal.setitimer(signal.ITIMER_PROF, messages.CPU_SECONDS)  # its signal ends the process
        return messages.Checked(written=check(wanted))
    except InvalidRequestError as error:
        return messages.Checked(str(error), error.param)
    except (OverflowError, RecursionError) as error:  # absurd numbers or nesting
        refusal = refused(str(error), wanted)
        return messages.Checked(str(refusal), refusal.param)
    except MemoryError:
        os.abort()  # as native code does when it runs out of memory
    except Exception as error:
        logger.exception("a structure could not be checked")
        return messages.Checked(f"{type(error).__name__}: {error}", unexpected=True)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def main(source: BinaryIO, sink: BinaryIO, check: Check | None = None) -> int:
    """Answer until the input ends.

    Args:
        check: replaces llguidance's check.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    end_with(os.getppid())
    setup_logging()
    setup = msgspec.msgpack.decode(read_frame(source), type=messages.Setup)
    check = check or _checks(setup)
    confine(messages.ADDRESS_BYTES)
    bound(resource.RLIMIT_STACK, STACK_BYTES)
    decoder = msgspec.msgpack.Decoder(StructuredOutputsParams)
    sink.write(frame(messages.READY))
    sink.flush()
    return answer_all(source, sink, lambda data: answer(check, decoder.decode(data)))


def _checks(setup: messages.Setup) -> Check:
    tokenizer = byte_tokenizer(len(setup.specials))
    specials = {name: token for token, name in enumerate(setup.specials, FIRST_SPECIAL)}
    return partial(checked, tokenizer, specials=specials, others=setup.specials)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of native code must not mix with the answers
    sys.exit(main(sys.stdin.buffer, answers))
