"""The chat template of folders that have only Mistral's tekken.json.

Mistral's library writes prompts by the file's version:

| version | tools stand before | a call | a result |
|---|---|---|---|
| v7 | the last user | [TOOL_CALLS] and a list of JSON | id, [TOOL_CONTENT], text |
| v11 | the last user | [TOOL_CALLS] name [CALL_ID] id [ARGS] JSON | id, [TOOL_CONTENT], text |
| v13 | the first user | [TOOL_CALLS] name [ARGS] JSON | text, in the order of the calls |

It joins neighbours of one role by an empty line. v3 embeds results as JSON and is not here.
"""

from __future__ import annotations

import re
from collections.abc import Container

_VERSIONS = {"v7": 7, "v11": 11, "v13": 13}
_TEMPLATE = """\
{%- set ns = namespace(first=-1, last=-1, text='', calls=[], ids=[], results=[]) %}
{%- for m in messages %}
  {%- if m.role == 'user' and (loop.first or loop.previtem.role != 'user') %}
    {%- set ns.last = loop.index0 %}
    {%- if ns.first < 0 %}{% set ns.first = loop.index0 %}{% endif %}
  {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for m in messages %}
  {%- set begins = loop.first or loop.previtem.role != m.role %}
  {%- set ends = loop.last or loop.nextitem.role != m.role %}
  {%- set content = m.content or '' %}
  {%- if begins %}{% set ns.text = '' %}{% endif %}
  {%- set ns.text = ns.text ~ ('\\n\\n' if ns.text and content else '') ~ content %}
  {%- if m.role == 'system' %}
    {{- '[SYSTEM_PROMPT]' ~ content ~ '[/SYSTEM_PROMPT]' }}
  {%- elif m.role == 'user' %}
    {%- if begins and tools and loop.index0 == (ns.first if version > 11 else ns.last) %}
      {{- '[AVAILABLE_TOOLS][' }}
      {%- for tool in tools %}
        {%- set f = tool.function %}
        {{- ', ' if not loop.first else '' }}
        {{- '{"type": "function", "function": {"name": ' ~ f.name | tojson }}
        {{- ', "description": ' ~ (f.description or '') | tojson }}
        {{- ', "parameters": ' ~ (f.parameters or {}) | tojson ~ '}}' }}
      {%- endfor %}
      {{- '][/AVAILABLE_TOOLS]' }}
    {%- endif %}
    {%- if ends %}{{ '[INST]' ~ ns.text ~ '[/INST]' }}{% endif %}
  {%- elif m.role == 'assistant' %}
    {%- set ns.calls = ([] if begins else ns.calls) + (m.tool_calls or []) %}
    {%- if ends %}
      {%- if not ns.text and not ns.calls %}
        {{- raise_exception('An assistant message has neither content nor tool calls.') }}
      {%- endif %}
      {{- ns.text.rstrip(' ') }}
      {%- if ns.calls and version == 7 %}{{ '[TOOL_CALLS][' }}{% endif %}
      {%- for call in ns.calls %}
        {%- set f = call.function %}
        {%- set ns.ids = ns.ids + [call.id] %}
        {%- if version == 7 %}
          {{- ', ' if not loop.first else '' }}
          {{- '{"name": ' ~ f.name | tojson ~ ', "arguments": ' ~ f.arguments | tojson }}
          {{- (', "id": ' ~ call.id | tojson if call.id else '') ~ '}' }}
        {%- else %}
          {{- '[TOOL_CALLS]' ~ f.name }}
          {{- '[CALL_ID]' ~ call.id if version == 11 and call.id else '' }}
          {{- '[ARGS]' ~ f.arguments | tojson }}
        {%- endif %}
      {%- endfor %}
      {%- if ns.calls and version == 7 %}{{ ']' }}{% endif %}
      {{- eos_token }}
    {%- endif %}
  {%- elif m.role == 'tool' %}
    {%- if version < 13 %}
      {{- '[TOOL_RESULTS]' ~ m.tool_call_id ~ '[TOOL_CONTENT]' ~ content ~ '[/TOOL_RESULTS]' }}
    {%- else %}
      {%- set ns.results = ns.results + [m] %}
      {%- if ends %}
        {%- for id in (ns.ids + [none]) | unique(true) %}
          {%- for r in ns.results if id == (r.tool_call_id if r.tool_call_id in ns.ids else none) %}
            {{- '[TOOL_RESULTS]' ~ (r.content or '') ~ '[/TOOL_RESULTS]' }}
          {%- endfor %}
        {%- endfor %}
        {%- set ns.results = [] %}
        {%- set ns.ids = [] %}
      {%- endif %}
    {%- endif %}
  {%- else %}
    {{- raise_exception('A role is system, user, assistant or tool, not ' ~ m.role ~ '.') }}
  {%- endif %}
{%- endfor %}"""


def mistral_template(version: str, special: Container[str]) -> str | None:
    """Return the chat template of a tekken.json; None if Quire does not know its rules.

    Args:
        special: its special tokens, all of which the template needs.
    """
    number = _VERSIONS.get(version)
    wanted = {*re.findall(r"\[/?[A-Z_]{4,}\]", _TEMPLATE)}
    unused = {7: {"[CALL_ID]", "[ARGS]"}, 13: {"[CALL_ID]", "[TOOL_CONTENT]"}}
    if number is None or any(token not in special for token in wanted - unused.get(number, set())):
        return None
    return f"{{%- set version = {number} %}}{_TEMPLATE}"
