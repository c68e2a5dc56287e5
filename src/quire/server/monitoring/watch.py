"""Watch an engine for some seconds, and report on it."""

from __future__ import annotations

import asyncio
import os
import sys
from math import inf
from typing import TYPE_CHECKING

import msgspec

from quire.core.config import EngineConfig
from quire.core.errors import InvalidRequestError
from quire.core.op_profile import OpProfile
from quire.explain.analyse import explain
from quire.explain.cards import Card, cards_between, cards_in_thread
from quire.explain.causes.case import schedules
from quire.explain.collect import collect
from quire.explain.confidence import FEW_STEPS
from quire.explain.evidence import Evidence
from quire.explain.probe import Probe
from quire.explain.report import Report
from quire.frontend.client.profiling import ProfilerBusyError
from quire.system.proc import family
from quire.system.stacks import Stacks, StackSampler

if TYPE_CHECKING:
    from quire.frontend.async_llm import AsyncLLM

SAMPLE_SECONDS = 0.04
"""A pause of the event loop is seen if it is longer."""
MOST_STEP = 30.0
"""Seconds by which a window grows until its first step has ended."""
GROWTH = 2.0
"""By how many times its length a window grows until `FEW_STEPS` have ended."""
MOST_SIMULATION = 10.0
"""Seconds that the simulation of changes may take."""
_SIMULATION = ("nice", sys.executable, "-m", "quire.explain.whatif")
PROFILED_STEPS = 256
"""Most steps of a window whose operations are timed."""


async def report_on(evidence: Evidence) -> Report:
    """Return the report. A child process simulates, so that no stream waits for it."""
    report = explain(evidence)
    if not any(schedules(change) for change in report.changes):
        return report
    pipe = asyncio.subprocess.PIPE
    try:
        child = await asyncio.create_subprocess_exec(
            *_SIMULATION, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
        )
    except OSError:  # no more files or processes, which the report may be about
        return report
    try:
        told = child.communicate(msgspec.json.encode(evidence))
        answer, _ = await asyncio.wait_for(told, MOST_SIMULATION)
        return msgspec.json.decode(answer, type=Report)
    except (TimeoutError, msgspec.MsgspecError):
        return report  # the cost model's estimates
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def watch(engine: AsyncLLM, seconds: float, *, tls: bool = False) -> Evidence:
    """Return the engine's activity during the next `seconds`, or until some steps have ended."""
    config = engine.resolved.config
    probe, front = Probe(engine.stats), StackSampler()
    profile = asyncio.create_task(_profile(engine, seconds))
    behind = asyncio.create_task(_stacks(engine, seconds))
    cards = asyncio.create_task(_cards(config))
    try:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        half = end - seconds / 2
        while (left := end - loop.time()) > 0:
            await asyncio.sleep(due := min(SAMPLE_SECONDS, left))
            probe.sample(due)
            if loop.time() >= half:
                probe.split()
                half = inf
        while (steps := probe.ended_steps) is not None and steps < FEW_STEPS:
            more = min(GROWTH * seconds, MOST_STEP) if steps else MOST_STEP
            if loop.time() >= end + more:
                break
            await asyncio.sleep(SAMPLE_SECONDS)
            probe.sample(SAMPLE_SECONDS)
        watched = probe.end()
        ops = await profile
        stacks = await behind
        seen = cards_between(await cards, await _cards(config))
    finally:
        profile.cancel()
        behind.cancel()
        cards.cancel()
        first = front.stop()
    args, facts, phases = engine.args, engine.facts, engine.phases
    # It reads samples of the weights' files, which may lie on a slow disk.
    return await asyncio.to_thread(
        collect, watched, args, config, facts, phases, ops, tls=tls, cards=seen,
        stacks=[first, *stacks],
    )  # fmt: skip


async def _stacks(engine: AsyncLLM, seconds: float) -> list[Stacks]:
    """Return where the threads of the processes that compute stand; [] if they cannot tell."""
    try:
        return msgspec.convert(await engine.profiling.stacks(seconds), list[Stacks])
    except InvalidRequestError:
        return []


async def _cards(config: EngineConfig) -> list[Card]:
    return await cards_in_thread(family(os.getpid())) if config.device == "cuda" else []


async def _profile(engine: AsyncLLM, seconds: float) -> OpProfile | None:
    """Profile some steps in the next `seconds`; None while another profile is running."""
    try:
        profile = await engine.profiling.ops(PROFILED_STEPS, seconds)
    except (ProfilerBusyError, InvalidRequestError):
        return None
    return msgspec.convert(profile, OpProfile)
