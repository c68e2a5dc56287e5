"""The messages between a grammar worker and its clients; see `grammar_worker`."""

from __future__ import annotations

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import WrittenStructure

READY = "ready"
CPU_SECONDS = 5.0
"""CPU time for one structure, after which the system ends the process. Wall-clock time would depend
on other processes. Writing the grammars takes 0.5 s at worst; llguidance's own bounds let slower
structures through."""
ADDRESS_BYTES = 2**30
"""Address space of the process, of which its code and initial data take 0.1 GiB."""


class Setup(msgspec.Struct):
    """The model's control tokens, name → id."""

    specials: dict[str, int] = {}


class Checked(msgspec.Struct):
    """The result of checking a structure; valid if there is no error."""

    error: str | None = None
    error_param: str | None = None
    unexpected: bool = False
    """The error is not the structure's fault."""
    written: WrittenStructure | None = None
    """The valid structure as the engine core needs it; writing it there would delay its steps."""

    @property
    def num_bytes(self) -> int:
        written = self.written
        return 0 if written is None else len(written.grammars) + len(written.plain or "")

    @property
    def fault(self) -> Exception | None:
        """Return the exception to raise in the process that asked, or None."""
        if self.error is None:
            return None
        if self.unexpected:
            return RuntimeError(f"The structure could not be checked: {self.error}")
        return InvalidRequestError(self.error, param=self.error_param)
