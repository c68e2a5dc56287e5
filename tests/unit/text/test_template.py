"""template.py, template_budget.py, template_filters.py: faults 25 and 26, and what must work."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from quire.core.errors import InvalidRequestError
from quire.text import template_budget
from quire.text.template import render_template

NESTED = '{% set a = ["x" * 1000] * 1000 %}{% set b = [a] * 1000 %}'
DOUBLING = '{% set ns = namespace(x="x" * 1000) %}{% for i in range(40) %}{% set ns.x = '

TOO_LARGE = [
    '{{ "x" * 300000000 }}',
    '{{ 300000000 * "x" }}',
    "{{ [0] * 1000000000 }}",
    DOUBLING + "ns.x ~ ns.x %}{% endfor %}",
    DOUBLING + "ns.x + ns.x %}{% endfor %}",
    DOUBLING + '"%s%s" % (ns.x, ns.x) %}{% endfor %}',
    DOUBLING + '"{0}{0}".format(ns.x) %}{% endfor %}',
    DOUBLING + 'ns.x.replace("x", "xx") %}{% endfor %}',
    DOUBLING + 'ns.x|replace("x", "xx") %}{% endfor %}',
    DOUBLING + "[ns.x, ns.x]|join %}{% endfor %}",
    DOUBLING + '"".join([ns.x, ns.x]) %}{% endfor %}',
    '{% set x %}{{ "a" * 1000000 }}{% endset %}{% for i in range(300) %}{{ x }}{% endfor %}',
    '{{ "%0300000000d" % 5 }}',
    '{{ "%*d" % (300000000, 5) }}',
    '{{ "{:>300000000}".format(1) }}',
    '{{ "{:>{w}}".format(1, w=300000000) }}',
    '{{ "{a:>{w}}".format_map({"a": 1, "w": 300000000}) }}',
    '{{ "a".ljust(10 ** 9) }}',
    '{% set f = "a".zfill %}{{ f(10 ** 9) }}',
    '{{ "\t".expandtabs(10 ** 9) }}',
    '{{ ("a" * 10000).replace("a", "b" * 100000) }}',
    '{{ ("a" * 10000)|replace("a", "b" * 100000) }}',
    '{{ ("b" * 1000000).join("a" * 10000) }}',
    '{{ range(100000)|join("x" * 100000) }}',
    '{{ "a\n" * 1000|indent(100000000) }}',
    "{{ 5|tojson(indent=100000000) }}",
    "{{ (1).to_bytes(10 ** 9) }}",
    "{{ 10 ** 10000 ** 3 }}",
    "{{ [[0] * 1000] * 1000|sum(start=[]) }}",
    '{% set s = "x" * 8000000 %}{% for i in range(100) %}{% set t = s ~ i %}{% endfor %}',
    NESTED + "{{ b }}",
    NESTED + "{{ b|tojson }}",
    NESTED + "{{ b|upper }}",
    NESTED + '{{ "a" ~ b }}',
    NESTED + '{{ "%s" % b }}',
    NESTED + '{{ "{}".format(b) }}',
    NESTED + "{{ b|join }}",
    '{{ "x"|center(300000000) }}',
    "{{ lipsum(100000) }}",
]


@pytest.mark.parametrize("source", TOO_LARGE)
def test_large_values_are_refused_before_they_are_made(source: str) -> None:
    tracemalloc.start()
    with pytest.raises(InvalidRequestError):
        render_template(source, {})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
def test_endless_work_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "MAX_STEPS", 20_000)
    with pytest.raises(InvalidRequestError, match=r"steps|nests"):
        render_template(source, {})


def test_the_clock_stops_what_steps_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "MAX_SECONDS", 0.0)
    with pytest.raises(InvalidRequestError, match="takes longer"):
        render_template("{% for i in range(1000) %}{% endfor %}", {})


@pytest.mark.parametrize(
    "source",
    [
        '{{ "".__class__ }}',
        "{{ messages.__class__.__mro__ }}",
        '{{ messages|attr("__class__") }}',
        '{{ messages["__class__"]["__base__"] }}',
        '{{ "{0.__class__}".format(1) }}',
        '{{ "{0.__class__}".format_map({"0": 1}) }}',
        '{{ messages|map(attribute="__class__")|list }}',
        "{{ raise_exception.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(x=1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(_x=1) }}",
        "{{ (1).__format__('9') }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'x' %}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render_template(source, {"messages": [{"content": "x"}]})
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% if %}", "malformed in line 1"),
        ("{{ a|nosuch }}", "No filter named 'nosuch'"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ missing.field }}", "'missing' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_errors_say_what_is_wrong(source: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        render_template(source, {})
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "  {% if true %}\n  a\n  {% endif %}\nb",
        "{{ value|tojson }} {{ value|tojson(indent=2) }}",
        "{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "{% generation %}{{ text|trim }}{% endgeneration %}!",
        "{% set ns = namespace(n=0) %}{% for k in value %}{% set ns.n = 1 %}{% endfor %}{{ ns.n }}",
        "{{ text|trim|upper ~ 1 ~ none ~ [1, 'x'] }}{{ undefined_name }}",
        "{{ value|join(', ') }} {{ value.items()|list|length }} {{ 'a%sb%d' % ('x', 3) }}",
        "{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|join('|') }}",
        "{{ messages|rejectattr('role', 'equalto', 'user')|list|length }}",
        "{{ messages[::-1][0].role }}",
        "{{ text.strip().split(' ')[-1].title() }} {{ '{:>5}|{}'.format(1, 'é') }}",
        "{{ tools|join(', ', attribute='function.name') }}{{ tools|sum(attribute='n.0') }}",
        "{{ lines|indent }}{{ lines|indent(2, true, true) }}{{ ''|indent(1, true) }}",
        "{{ [1, 2, 3]|sum }} {{ messages|sum(attribute='n') }} {{ text|indent(2, true) }}",
        "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a') }}{{ text|replace('l', 'L') }}",
        "{{ 'x' in text }} {{ text is string }} {{ value is mapping }} {{ messages is iterable }}",
        "{{ dict(a=1).a }} {{ value|dictsort }} {{ 2 ** 8 * 3 % 7 }} {{ [1] * 3 + [2] }}",
    ],
)
def test_renders_as_transformers(source: str) -> None:
    messages = [
        {"role": "user", "content": "hé", "n": 1},
        {"role": "assistant", "content": "b", "n": 2},
    ]
    tools = [{"function": {"name": name}, "n": [5]} for name in "fg"]
    variables = {
        "text": "  hello world \n x",
        "value": {"k": "é<>&'", "z": [1, None]},
        "lines": "\n\r\na\u2028b\n\nc\n",
    }
    options: dict[str, Any] = {"chat_template": source, "tools": tools, **variables}
    expected = render_jinja_template([messages], **options)[0][0]
    found = render_template(source, {"messages": messages, "tools": tools, **variables})
    assert found == expected


def test_large_prompts_are_fine() -> None:
    content = "word " * 400_000
    source = "{% for m in messages %}{{ '<' + m.content|trim + '>' }}{% endfor %}"
    assert len(render_template(source, {"messages": [{"content": content}]})) == 2_000_001
    many = [{"content": "x"}] * 5000
    assert len(render_template(source, {"messages": many})) == 15_000


def test_a_conversation_that_is_too_long_for_any_template() -> None:
    with pytest.raises(InvalidRequestError, match="Shorten the conversation") as caught:
        render_template("{{ messages | trim }}", {"messages": "a" * (2**23 + 1)})
    assert caught.value.param == "messages"
