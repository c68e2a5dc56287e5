"""Causes in images: their decoding in the front end, and the tower in the core."""

from __future__ import annotations

from quire.core.images import IMAGE_PROCESSES
from quire.explain.causes.case import Case, Kind, Suspect, change, suspect
from quire.explain.report import Change

HALF = 0.5
"""Of the pixels: what an image of 0.7 times the side takes."""
LEAST_PROCESS = 0.5
"""Share of its time that an image process must compute to delay the core."""


def encoder(case: Case) -> Suspect | None:
    """The tower reads images while text waits."""
    share = case.window.share("encode")
    return suspect(
        "encoder",
        f"The tower reading images takes {share:.0%} of the core's time.",
        HALF * share,
        [_smaller(share)],
        Kind.CLIENTS,
        encode_share=share,
    )


def image_preparation(case: Case) -> Suspect | None:
    """The core waits for images that are decoded and resized."""
    w, e = case.window, case.evidence
    busy, idle = w.share("images"), w.share("idle")
    lanes = min(IMAGE_PROCESSES, max(1, e.cores))
    if busy < LEAST_PROCESS * min(lanes, 2):
        return None
    return suspect(
        "image_preparation",
        f"Decoding and resizing images takes {busy:.1f} cores, in up to {IMAGE_PROCESSES} "
        f"processes, and the core waits {idle:.0%}.",
        min(idle, busy / lanes),
        [_smaller(min(idle, busy / lanes))],
        Kind.CLIENTS,
        images_share=busy,
        core_idle=idle,
    )


def _smaller(share: float) -> Change:
    return change("smaller images", "half of the pixels take half of the time", HALF * share)
