"""Errors that a user can act on: each says what happened, why, and how to fix it."""

from __future__ import annotations

import re

MAX_TOLD = 2000
"""Longest message about a damaged file, in characters."""
NOT_FOLLOWED = "The output's structure cannot be followed: "
"""Prefix of the stop reason if a structure turns out to be too complex: the request's fault, not
the engine's."""
_REASON = re.compile(r"Invalid request(?: \((?P<param>[^()]+)\))?: (?P<what>.*)", re.DOTALL)


class QuireError(Exception):
    """Base of all errors that Quire raises on purpose.

    Args:
        what: what happened, one sentence.
        fix: what the user can change, one sentence; appended to the message.
        param: the wrong field, as the user wrote it (`--flag` or a JSON field).
    """

    code = "quire_error"

    def __init__(self, what: str, *, fix: str | None = None, param: str | None = None) -> None:
        self.what = what
        self.fix = fix
        self.param = param
        super().__init__(f"{what} {fix}" if fix else what)


class ConfigError(QuireError, ValueError):
    """A flag or a combination of flags cannot work."""

    code = "config_error"


class InvalidRequestError(QuireError, ValueError):
    """A request cannot be served as written; HTTP 400."""

    code = "invalid_request_error"


class ContextLengthError(InvalidRequestError):
    """A prompt leaves no room for an answer.

    Attributes:
        num_tokens: tokens of the prompt, at least.
        limit: most tokens of prompt and answer; the model's, or the KV cache's if that is less.
    """

    code = "context_length_exceeded"

    def __init__(
        self,
        num_tokens: int,
        limit: int,
        *,
        counted: bool = True,
        of_cache: bool = False,
        pooled: bool = False,
    ) -> None:
        self.num_tokens = num_tokens
        self.limit = limit
        held = " (the size of the KV cache)" if of_cache else ""
        fix = "Shorten the prompt, or enlarge the cache." if of_cache else "Shorten the prompt."
        if pooled:
            fix = "Shorten it, or set truncate_prompt_tokens; -1 keeps as many tokens as allowed."
        super().__init__(
            # Clients recognize the error by these words.
            f"This model's maximum context length is {limit} tokens{held}, and the prompt is too "
            f"long: it has {'' if counted else 'at least '}{num_tokens}"
            f"{'' if pooled else ', and the answer needs one more'}.",
            fix=fix,
            param="prompt",
        )


class ModelNotFoundError(QuireError, FileNotFoundError):
    """There is no model at the given path or name."""

    code = "model_not_found"

    def __str__(self) -> str:  # FileNotFoundError formats errno pairs
        return str(self.args[0])


class CheckpointError(QuireError, ValueError):
    """A file of the model is damaged, incomplete or does not fit the architecture.

    The message may quote the file, so it is truncated and made printable.
    """

    code = "checkpoint_error"

    def __init__(self, what: str, *, fix: str | None = None, param: str | None = None) -> None:
        shown = what if len(what) <= MAX_TOLD else f"{what[:MAX_TOLD]} …"
        printable = shown.encode("utf-8", "backslashreplace").decode()
        super().__init__(printable, fix=fix, param=param)


class UnsupportedModelError(CheckpointError):
    """The model is valid, but Quire does not support its architecture or format."""

    code = "unsupported_model"


class OutOfMemoryError(QuireError, MemoryError):
    """The model, or one request's KV cache, does not fit into the allowed memory."""

    code = "out_of_memory"


class EngineDeadError(QuireError, RuntimeError):
    """The engine core has stopped; the engine must be restarted."""

    code = "engine_dead"


class EngineRestartingError(EngineDeadError):
    """The engine core was lost, and another one is starting: retry in a moment."""

    code = "engine_restarting"


class EngineSleepingError(EngineDeadError):
    """The engine sleeps; it accepts requests after `wake_up`."""

    code = "engine_sleeping"


class StructureUnavailableError(QuireError, RuntimeError):
    """A structure cannot be checked now: retry in a moment; HTTP 503."""

    code = "structure_unavailable"


def class_of_code(code: str) -> type[QuireError] | None:
    """Return the error class with this code; None if it is not one of Quire's."""
    known = [k for k in globals().values() if isinstance(k, type) and issubclass(k, QuireError)]
    return next((kind for kind in known if kind.code == code), None)


def reason_of(error: Exception) -> str:
    """Return the text with which the core ends a request because of `error`."""
    if not isinstance(error, InvalidRequestError):
        return str(error) or repr(error)
    where = f" ({error.param})" if error.param else ""
    return f"Invalid request{where}: {error}"


def refusal_of(reason: str) -> InvalidRequestError | None:
    """Return the error in `reason` if it is the request's own fault, else None."""
    if reason.startswith(NOT_FOLLOWED):
        return InvalidRequestError(reason, param="structured_outputs")
    found = _REASON.fullmatch(reason)
    return found and InvalidRequestError(found["what"], param=found["param"])
