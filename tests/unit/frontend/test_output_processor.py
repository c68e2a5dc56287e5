"""Tokens become text; stop strings, n, kinds of output, logprobs and metrics."""

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import InvalidRequestError
from quire.core.lora import LoRARequest
from quire.core.messages import CoreOutput, RequestEvent, StepOutputs, TokenLogprobs, pack_logprobs
from quire.core.options import RequestInputs, RequestOptions
from quire.core.outputs import Logprob, RequestOutput
from quire.core.request import FinishReason
from quire.core.sampling_params import (
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
)
from quire.frontend.output import position
from quire.frontend.output.output_processor import ProcessedStep
from quire.frontend.output.position import with_dicts
from quire.frontend.output.repetition import RepetitionDetector
from quire.metrics.stats import EngineStats, LoraUse
from quire.text.tokenizers.tokenizer import Tokenizer
from tests.unit.engine.echo import EOS
from tests.unit.engine.fakes import NamedOutputs, input_processor

DELTA = RequestOutputKind.DELTA
FINAL_ONLY = RequestOutputKind.FINAL_ONLY


class Bench:
    """An output processor with one request, fed by hand."""

    def __init__(self, prompt: str = "a", **params: Any) -> None:
        self.stats = EngineStats()
        self.processor = NamedOutputs(self.stats)
        self.now = 10.0
        self.add("r", prompt, **params)

    def add(self, request_id: str, prompt: str = "a", **params: Any) -> None:
        wanted = SamplingParams(**params)
        self.processor.add(input_processor().process(request_id, prompt, wanted, arrival_time=9.0))

    def step(self, *outputs: CoreOutput) -> ProcessedStep:
        self.now += 1
        return self.processor.process(StepOutputs(list(outputs), None, self.now))

    def feed(self, text: str | bytes, **kwargs: Any) -> ProcessedStep:
        return self.step(core("r", text, **kwargs))


def core(
    request_id: str, text: str | bytes, reason: FinishReason | None = None, **kwargs: Any
) -> CoreOutput:
    tokens = list(text.encode() if isinstance(text, str) else text)
    return CoreOutput(request_id, tokens, reason, scheduled_time=10.0, **kwargs)


def texts(outputs: Iterator[RequestOutput] | list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def test_cumulative_delta_and_final() -> None:
    steps = [("b", None), ("c", None), ("d", FinishReason.LENGTH)]
    expected = {
        RequestOutputKind.CUMULATIVE: (["b", "bc", "bcd"], [1, 2, 3]),
        DELTA: (["b", "c", "d"], [1, 1, 1]),
        FINAL_ONLY: (["bcd"], [3]),
    }
    for kind, (want_texts, want_counts) in expected.items():
        bench = Bench(output_kind=kind)
        got = [out for text, reason in steps for out in bench.feed(text, reason=reason).outputs]
        assert texts(got) == want_texts
        assert [len(o.outputs[0].token_ids) for o in got] == want_counts
        assert [o.finished for o in got] == [False] * (len(got) - 1) + [True]
        assert got[-1].outputs[0].finish_reason == "length"
        assert bench.processor.num_unfinished == 0


def looping(text: str, p: RepetitionDetectionParams) -> int | None:
    """Return how many characters end with a pattern that is repeated, by trying all patterns."""
    for end in range(1, len(text) + 1):
        for size in range(max(p.min_pattern_size, 1), p.max_pattern_size + 1):
            pattern = text[end - size : end]
            if len(pattern) == size and text[:end].endswith(pattern * p.min_count):
                return end
    return None


@given(
    st.text("abc", min_size=1, max_size=40),
    st.integers(1, 6),
    st.integers(0, 6),
    st.integers(2, 4),
    st.integers(1, 3),
)
def test_an_output_that_repeats_itself_ends(
    text: str, most: int, least: int, count: int, at_once: int
) -> None:
    wanted = RepetitionDetectionParams(most, min(least, most), count)
    bench = Bench(repetition_detection=wanted, output_kind=DELTA, max_tokens=None)
    end, got, aborted = looping(text, wanted), "", list[str]()
    for start in range(0, len(text), at_once):
        step = bench.feed(text[start : start + at_once])
        got, aborted = got + "".join(texts(step.outputs)), aborted + step.aborts
        if step.outputs and step.outputs[-1].finished:
            assert step.outputs[-1].outputs[0].finish_reason == "repetition"
            assert step.outputs[-1].outputs[0].stop_reason == "repetition_detected"
            break
    assert got == text[:end]
    assert len(aborted) == bench.stats.finished["repetition"] == (end is not None)


def test_a_long_output_needs_no_more_memory_to_find_repetitions() -> None:
    detector = RepetitionDetector(RepetitionDetectionParams(8, 1, 2))
    tracemalloc.start()
    assert not any(detector.repeats(token) for token in range(2000))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 2**15


def test_a_repetition_is_no_reason_before_min_tokens_or_at_the_end() -> None:
    wanted = RepetitionDetectionParams(1, 1, 3)
    bench = Bench(repetition_detection=wanted, min_tokens=5, output_kind=FINAL_ONLY)
    assert not bench.feed("bbbb").outputs
    [output] = bench.feed("bb").outputs
    assert output.outputs[0].text == "bbbbb"
    bench.add("r", repetition_detection=wanted, output_kind=FINAL_ONLY)
    [output] = bench.feed("bbb", reason=FinishReason.LENGTH).outputs
    assert output.outputs[0].finish_reason == "length"


def test_log_probabilities_are_converted_once_when_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    convert, converted = position.position_logprobs, list[TokenLogprobs]()

    def counted(tokenizer: Tokenizer, found: TokenLogprobs) -> dict[int, Logprob]:
        converted.append(found)
        return convert(tokenizer, found)

    monkeypatch.setattr(position, "position_logprobs", counted)
    bench = Bench(logprobs=2, output_kind=RequestOutputKind.CUMULATIVE)
    found = TokenLogprobs([98, 97, 98], [-1.0, -0.5, -1.0], 2)
    [output] = bench.feed("b", logprobs=[found]).outputs
    [entry] = output.outputs[0].logprobs or []
    assert len(entry) == 2
    assert converted == []
    expected = convert(bench.processor._tokenizer, found)
    assert list(entry.items()) == list(expected.items())
    assert (entry[97], [*entry]) == (expected[97], [98, 97])
    [known] = with_dicts(output).outputs[0].logprobs or []
    assert type(known) is dict
    assert known == expected
    assert len(converted) == 1


def test_a_stop_string_across_tokens_ends_the_sequence_and_is_cut_off() -> None:
    bench = Bench(stop=["def"], output_kind=DELTA)
    emitted = [bench.feed(c) for c in "bcde"]
    assert "".join(t for e in emitted for t in texts(e.outputs)) == "bc"
    last = bench.feed("fgh")
    [output] = last.outputs
    assert last.aborts == ["r"]
    assert (output.outputs[0].text, output.finished) == ("", True)
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", "def")
    assert output.outputs[0].token_ids == [ord("f")]
    assert bench.feed("xyz").outputs == []


def test_a_sequence_that_has_ended_does_not_move() -> None:
    """The other one goes on behind its tokens, in the middle of a stop string."""
    bench = Bench(n=2, stop=["def"], output_kind=DELTA)
    bench.step(core("r_0", "b", FinishReason.LENGTH), core("r_1", "bcde"))
    assert bench.processor.retry("r", 99.0, ready=True)
    state = bench.processor.state("r")
    [child] = state.running
    transfer = child.inputs.options.kv_transfer
    assert transfer.sampled == tuple(b"bcde")
    [output] = bench.step(core("r_1", "f")).outputs
    [part] = output.outputs
    assert (part.index, part.text, part.finish_reason, output.finished) == (1, "", "stop", True)
    assert bench.stats.finished == {"length": 1, "stop": 1}


def test_a_stop_string_may_be_included() -> None:
    bench = Bench(stop="cd", include_stop_str_in_output=True)
    [output] = bench.feed("bcde").outputs
    assert output.outputs[0].text == "bcd"


def test_held_back_text_comes_out_at_the_end() -> None:
    bench = Bench(stop=["cdx"], output_kind=DELTA)
    got = bench.feed("bcd").outputs + bench.feed("e", reason=FinishReason.LENGTH).outputs
    assert texts(got) == ["b", "cde"]
    bench = Bench(stop=["cdx"])
    bench.feed("bcd")
    _, aborted = bench.processor.abort("r", 99.0)
    assert aborted.outputs[0].text == "bcd"
    assert aborted.outputs[0].finish_reason == "abort"
    assert bench.stats.aborted_tokens == 4  # one of the prompt, three of the answer


def test_a_stop_string_in_the_last_step_wins_and_needs_no_abort() -> None:
    step = Bench(stop=["d"]).feed("bcd", reason=FinishReason.LENGTH)
    assert step.aborts == []
    assert step.outputs[0].outputs[0].finish_reason == "stop"
    assert step.outputs[0].outputs[0].text == "bc"


def test_min_tokens_holds_back_stop_strings() -> None:
    bench = Bench(stop=["c"], min_tokens=3)
    [output] = bench.feed("bcabc").outputs
    assert (output.outputs[0].text, output.outputs[0].token_ids) == ("bcab", [*b"bcabc"])


@pytest.mark.parametrize("token", [EOS, ord("q")])
def test_the_stop_token_is_reported_but_not_part_of_the_text(token: int) -> None:
    bench = Bench(stop_token_ids=[ord("q")])
    reason = None if token == EOS else token
    [output] = bench.step(CoreOutput("r", [98, token], FinishReason.STOP, reason)).outputs
    completion = output.outputs[0]
    assert (completion.text, completion.token_ids) == ("b", [98, token])
    assert (completion.finish_reason, completion.stop_reason) == ("stop", reason)


def test_n_sequences_are_one_output_a_step() -> None:
    bench = Bench(n=2, output_kind=DELTA)
    [both] = bench.step(core("r_0", "b"), core("r_1", "c")).outputs
    assert [(c.index, c.text) for c in both.outputs] == [(0, "b"), (1, "c")]
    [one] = bench.step(core("r_1", "d", FinishReason.LENGTH)).outputs
    assert [(c.index, c.finish_reason) for c in one.outputs] == [(1, "length")]
    assert not one.finished
    [last] = bench.step(core("r_0", "e", FinishReason.STOP)).outputs
    assert last.finished
    assert bench.stats.finished == {"length": 1, "stop": 1}


def test_n_sequences_final_only_waits_for_all() -> None:
    bench = Bench(n=2, output_kind=FINAL_ONLY)
    assert bench.step(core("r_1", "xy", FinishReason.LENGTH)).outputs == []
    [output] = bench.step(core("r_0", "b", FinishReason.LENGTH)).outputs
    assert [(c.index, c.text) for c in output.outputs] == [(0, "b"), (1, "xy")]


def test_abort_of_n_sequences_names_those_that_run() -> None:
    bench = Bench(n=3)
    bench.step(core("r_1", "b", FinishReason.LENGTH))
    ids, output = bench.processor.abort("r", 99.0)
    assert ids == ["r_0", "r_2"]
    assert [c.finish_reason for c in output.outputs] == ["abort", "length", "abort"]
    assert bench.processor.abort("r", 99.0) == ([], None)


def test_an_id_under_way_is_refused_and_may_be_used_again_afterwards() -> None:
    bench = Bench(n=2)
    bench.add("r_1")
    with pytest.raises(InvalidRequestError, match="in use"):
        bench.add("r")
    bench.processor.abort("r", 99.0)
    bench.add("r")


@pytest.mark.parametrize("n", [1, 2])
def test_what_the_core_still_says_of_an_aborted_request_meets_no_other(n: int) -> None:
    bench = Bench(n=n, output_kind=DELTA)
    name = "r" if n == 1 else "r_1"
    old = bench.processor.ids[name]
    bench.feed("b") if n == 1 else bench.step(core(name, "b"))
    bench.processor.abort("r", 99.0)
    bench.add("r", n=n, output_kind=DELTA)
    late = StepOutputs([core(old, "old", FinishReason.LENGTH)], None, 100.0)
    late.events = [RequestEvent(old, "preempted", 100.0)]
    assert bench.processor.process(late).outputs == []
    [output] = bench.step(core(name, "new")).outputs
    assert output.outputs[0].text == "new"
    [timeline] = [
        t for t in bench.processor.timelines.find(lambda t: t.id == name) if not t.finished
    ]
    assert [line.kind for line in timeline.story()] == ["arrived", "first_token"]


def test_logprobs() -> None:
    bench = Bench("ab", logprobs=2, prompt_logprobs=1, output_kind=DELTA)
    row = TokenLogprobs([98, 99, 98], [-2.0, -0.5, -2.0], 2)
    step = core("r", "b", logprobs=[row], prompt_logprobs=[pack_logprobs(row)])
    [output] = bench.step(step).outputs
    [position] = output.outputs[0].logprobs or []
    assert [(t, p.logprob, p.rank, p.decoded_token) for t, p in position.items()] == [
        (98, -2.0, 2, "b"),
        (99, -0.5, 1, "c"),
    ]
    assert output.outputs[0].cumulative_logprob == -2.0
    assert output.prompt_logprobs == [None, position]
    [output] = bench.step(core("r", "b", logprobs=[row])).outputs
    assert output.outputs[0].cumulative_logprob == -4.0
    assert len(output.outputs[0].logprobs or []) == 1
    assert output.prompt_logprobs is None


def test_a_sequence_ahead_of_the_first_waits_for_the_prompt_s_logprobs() -> None:
    """Its prompt may come from the cache, where the first one's has to be computed."""
    bench = Bench("ab", n=3, prompt_logprobs=1, output_kind=DELTA)
    row = TokenLogprobs([98, 99], [-2.0, -0.5], 2)
    assert bench.step(core("r_1", "x")).outputs == []
    assert bench.step(core("r_1", "y", FinishReason.LENGTH), core("r_2", "u")).outputs == []
    [output] = bench.step(core("r_0", "b", prompt_logprobs=[pack_logprobs(row)])).outputs
    assert [c.text for c in output.outputs] == ["b", "xy", "u"]
    assert len(output.prompt_logprobs) == 2
    [output] = bench.step(core("r_2", "v")).outputs
    assert [(c.index, c.text) for c in output.outputs] == [(2, "v")]
    assert output.prompt_logprobs is None


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_a_probe_reports_the_prompt_if_the_first_sequence_fails(kind: RequestOutputKind) -> None:
    bench = Bench("ab", n=2, prompt_logprobs=1, output_kind=kind)
    assert bench.step(core("r_1", "x")).outputs == []
    failed = bench.step(core("r_0", "", FinishReason.ERROR, stop_reason="a NaN"))
    [probe] = failed.probes
    assert failed.outputs == []
    assert (
        probe.prompt_token_ids == bench.processor.states()[0].request.children[0].prompt_token_ids
    )
    assert probe.sampling_params.prompt_logprobs == 1
    assert bench.step(core("r_1", "y", FinishReason.LENGTH)).outputs == []
    row = TokenLogprobs([98, 99], [-2.0, -0.5], 2)
    answer = core(probe.request_id, "z", FinishReason.LENGTH, prompt_logprobs=[pack_logprobs(row)])
    [output] = bench.step(answer).outputs
    assert output.finished
    assert [c.finish_reason for c in output.outputs] == ["error", "length"]
    assert [c.text for c in output.outputs] == ["", "xy"]
    assert len(output.prompt_logprobs) == 2
    assert bench.stats.generation_tokens == 2  # the probe's is not the client's
    assert bench.processor.num_unfinished == 0


def test_all_sequences_fail_if_the_probe_does() -> None:
    bench = Bench("ab", n=3, prompt_logprobs=1)
    [probe] = bench.step(core("r_0", "", FinishReason.ERROR, stop_reason="a NaN")).probes
    bench.step(core("r_1", "x", FinishReason.LENGTH))
    last = bench.step(core(probe.request_id, "", FinishReason.ERROR, stop_reason="another NaN"))
    assert last.aborts == ["r_2"]
    [output] = last.outputs
    assert [c.finish_reason for c in output.outputs] == ["error"] * 3
    assert [c.stop_reason for c in output.outputs] == ["a NaN"] + 2 * [
        "no prompt_logprobs: another NaN"
    ]


def test_no_probe_where_nobody_is_left_to_report_for() -> None:
    bench = Bench("ab", n=2, prompt_logprobs=1)
    both = [core(name, "", FinishReason.ERROR) for name in ("r_0", "r_1")]
    step = bench.step(*both)
    assert (step.probes, [output.finished for output in step.outputs]) == ([], [True])
    alone = Bench("ab", prompt_logprobs=1).step(core("r", "", FinishReason.ERROR))
    assert (alone.probes, [output.finished for output in alone.outputs]) == ([], [True])


@pytest.mark.parametrize("way", ["abort", "retry"])
def test_a_probe_ends_with_its_request(way: str) -> None:
    bench = Bench("ab", n=2, prompt_logprobs=1, output_kind=FINAL_ONLY)
    [probe] = bench.step(core("r_0", "", FinishReason.ERROR)).probes
    if way == "abort":
        ids, output = bench.processor.abort("r", 99.0)
        assert ids == [probe.request_id, "r_1"]
        assert output.finished
    else:
        assert bench.processor.retry("r", 99.0, ready=True)
        bench.step(core("r_1", "x", FinishReason.LENGTH))
    row = TokenLogprobs([98, 99], [-2.0, -0.5], 2)
    late = core(probe.request_id, "z", FinishReason.LENGTH, prompt_logprobs=[pack_logprobs(row)])
    assert bench.step(late).outputs == []
    assert bench.processor.num_unfinished == (way == "retry")


def test_a_failure_in_one_request_s_text_ends_only_that_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(logprobs=0)
    bench.add("s")
    broken = core("r", "b", logprobs=[])
    step = bench.step(broken, core("s", "b"))
    by_id = {o.request_id: o for o in step.outputs}
    assert step.aborts == ["r"]
    assert (by_id["r"].finished, by_id["r"].outputs[0].finish_reason) == (True, "error")
    assert by_id["s"].outputs[0].text == "b"


def test_the_core_s_error_reaches_the_output() -> None:
    step = Bench().step(CoreOutput("r", [], FinishReason.ERROR, "a NaN logit"))
    completion = step.outputs[0].outputs[0]
    assert (completion.finish_reason, completion.stop_reason) == ("error", "a NaN logit")


def test_metrics_and_stats() -> None:
    bench = Bench("abc")
    bench.feed("b", num_cached_tokens=2)
    bench.feed("c")
    [output] = bench.feed("d", reason=FinishReason.LENGTH, num_preemptions=1).outputs
    m = output.metrics
    assert (m.arrival_time, m.first_scheduled_time, m.first_token_time) == (9.0, 10.0, 11.0)
    assert (m.last_token_time, m.finished_time, m.num_preemptions) == (13.0, 13.0, 1)
    assert output.num_cached_tokens == 2
    s = bench.stats
    assert (s.prompt_tokens, s.cached_tokens, s.generation_tokens) == (3, 2, 3)
    assert (s.time_to_first_token.count, s.time_to_first_token.total) == (1, 2.0)
    assert (s.inter_token_latency.count, s.inter_token_latency.total) == (2, 2.0)
    assert (s.time_per_output_token.total, s.e2e_request_latency.total) == (1.0, 4.0)


@given(
    st.text(max_size=20),
    st.lists(st.text(min_size=1, max_size=4), max_size=3),
    st.data(),
)
def test_deltas_add_up_to_the_text_before_the_first_stop_string(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    raw = text.encode()
    bench = Bench(stop=stops or None, output_kind=DELTA)
    got = ""
    finished = False
    while not finished:
        size = data.draw(st.integers(1, 5))
        part, raw = raw[:size], raw[size:]
        [output] = bench.feed(part, reason=None if raw else FinishReason.LENGTH).outputs
        got += output.outputs[0].text
        finished = output.finished
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert got == text
    else:  # the stop string that is complete first
        assert any(text.startswith(got + stop) for stop in stops)
        assert len(got) <= min(ends)


def test_who_uses_which_adapter() -> None:
    bench = Bench()
    for number, name in enumerate(("first", "second"), 1):
        wanted = SamplingParams(n=2)
        options = RequestOptions(lora_request=LoRARequest(name, number, "/adapter"))
        inputs = RequestInputs(options)
        request = input_processor().process(name, "a", wanted, arrival_time=9.0, inputs=inputs)
        bench.processor.add(request)
    assert bench.processor.adapters() == LoraUse(set(), {"first", "second"})
    children = [c for state in bench.processor.states() for c in state.request.children]
    ids = [child.request_id for child in children if child.inputs.options.lora_request]
    admitted = [RequestEvent(ids[0], "admitted", 11.0)]
    bench.processor.process(StepOutputs([], None, 11.0, events=admitted))
    assert bench.processor.adapters() == LoraUse({"first"}, {"first", "second"})
    bench.processor.abort("first", 12.0)
    assert bench.processor.adapters() == LoraUse(set(), {"second"})
