#!/usr/bin/env python3
"""Render chat templates, written to exercise one construct each, with transformers' own renderer.

    python3 make_chat_golden.py --out ../tests/goldens/hf/chat.json

Needs transformers and jinja2. `strftime_now` is stopped at a fixed time (2001-09-09 01:46:40 UTC).
"""
import argparse, datetime, json, os

os.environ["TZ"] = "UTC"
import transformers
from transformers.utils import chat_template_utils as chat

TALK = [{"role": "system", "content": "  Be brief.  "}, {"role": "user", "content": "Hello, <world> & \"all\"!\n"},
        {"role": "assistant", "content": "Hi.\n\nWhat now?"}, {"role": "user", "content": "größe? 你好 🙂"}]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds <two> numbers & more", "parameters": {"type": "object", "properties": {
    "a": {"type": "number"}, "b": {"type": "number", "default": 1.5}}, "required": ["a"]}}}]
CALLS = [{"role": "user", "content": "2+2?"},
         {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2, "exact": True, "note": None}}}]},
         {"role": "tool", "name": "add", "content": "4"}, {"role": "assistant", "content": "<think>\neasy\n</think>\n\nFour."}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": " two"}]}, {"role": "assistant", "content": "Three"}]

# (name, template, messages, extra arguments)
CASES = [
    ("namespace and loop variables", """{%- set ns = namespace(system='', n=0) -%}
{%- for m in messages -%}
    {%- if m.role == 'system' -%}{%- set ns.system = m.content | trim -%}{%- else -%}{%- set ns.n = ns.n + 1 -%}
[{{ loop.index }}/{{ loop.length }}{{ ' first' if loop.first }}{{ ' last' if loop.last else '' }} {{ loop.revindex0 }} {{ loop.cycle('a', 'b') }}] {{ ns.system ~ '|' ~ m['content'] }}
    {%- endif -%}
{%- endfor -%}
{{ '\\n' ~ ns.n }}""", TALK, {}),
    ("macros with defaults and keywords", """{% macro turn(role, text, end='<|end|>', *, gap=' ') %}<|{{ role }}|>{{ gap }}{{ text }}{{ end }}
{% endmacro %}{% for m in messages %}{{ turn(m.role, m.content | trim) if loop.index0 is even else turn(text=m.content, role=m.role, end='') }}{% endfor %}""".replace(", *, gap=' '", ", gap=' '"), TALK, {}),
    ("tojson plain and indented", """{% if tools %}{{ tools | tojson }}
{{ tools | tojson(indent=2) }}
{% for t in tools %}{{ t.function | tojson(indent=4) }}{% endfor %}{% endif %}{{ messages[1].content | tojson }}{{ [1, 2.0, true, none, {}] | tojson }}""", TALK, {"tools": TOOLS}),
    ("clock and default", """Today: {{ strftime_now('%d %B %Y, %H:%M (%A %j)') }}. {{ date_string | default('no date') }} {{ nothing | default(none) is none }} {{ '' | default('empty', true) }}
{%- if date_string is not defined %} undefined{% endif %}""", TALK, {}),
    ("generation blocks", """{% for m in messages %}{% if m.role == 'assistant' %}<a>{% generation %}{{ m.content }}</a>{% endgeneration %}{%- else %}
<{{ m.role }}>{{ m.content }}{%- endif -%}{% endfor %}
{%- if add_generation_prompt %}<a>{% endif %}""", TALK, {"add_generation_prompt": True}),
    ("loop controls", """{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.role }};{% if m.role == 'assistant' %}{% break %}{% endif %}{% endfor %}""", TALK, {}),
    ("Python methods", """{% for m in messages %}{{ m.content.strip().split('\\n')[0].replace('<', '(').upper() }}|{{ m.content.startswith('Hi') }}|{{ m.content.rstrip().endswith('!') }}|{{ m.content.find('l') }}|{{ m.content.lstrip(' B') }}|{{ m.content.title() }}|{{ m.get('role') }}|{{ m.get('none', 'fallback') }}
{% endfor %}{% for k, v in messages[0].items() %}{{ k }}={{ v }},{% endfor %}{{ ' '.join(messages[0].keys()) }} {{ 'a-b-c'.split('-', 1) | join('+') }} {{ 'x'.join(['1', '2']) }} {{ 'abcabc'.count('bc') }} {{ 'Word'.isalpha() }} {{ '12'.isdigit() }} {{ 'a b'.capitalize() }}""", TALK, {}),
    ("slices and tests", """{{ messages[0]['role'] }} {{ messages[1:] | length }} {{ messages[::-1][0].role }} {{ messages[-1].content[:6] }} {{ messages[1:3] | map(attribute='role') | join(', ') }}
{%- for m in messages[::2] %} {{ m.content is string }} {{ m is mapping }} {{ m is iterable }} {{ m.role in ['user', 'tool'] }} {{ 'x' not in m.content }}{% endfor %} {{ 3 is odd }} {{ none is none }} {{ 1.0 is number }} {{ true is boolean }} {{ 4 is divisibleby(2) }} {{ [] is sequence }} {{ 1 is sameas 1 }}""", TALK, {}),
    ("filters", """{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | map('trim') | list | length }} {{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | list }} {{ ['b', 'a', 'b'] | unique | sort | join }} {% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %} {% for k, v in {'x': 1} | items %}{{ k }}{{ v }}{% endfor %} {{ 'two\\nlines' | indent(2) }} {{ [3, 1, 2] | sort(reverse=true) | first }} {{ [1, 2] | sum }} {{ '7' | int + 1 }} {{ 2.567 | round(1) }} {{ 'abc' | reverse }} {{ 'a' | upper }}{{ 'B' | lower }}{{ 'some text' | title | replace('T', 't') }} {{ 'x,y' | string | length }} {{ -3 | abs }} {{ [[1, 2], [3]] | map('first') | list }} {{ range(3) | list }} {{ [1, 2, 3, 4] | last }} {{ 'a' if false else 'c' }}""", TALK, {}),
    ("tool calls", """{%- for m in messages %}
    {%- if m.role == 'assistant' and m.tool_calls %}
        {%- for call in m.tool_calls %}
            {%- set call = call.function if call.function is defined else call %}
            {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}{{ call.arguments if call.arguments is string else call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
    {%- elif m.role == 'tool' %}
        {{- '\\n<tool_response name=' ~ m.name ~ '>\\n' + m.content + '\\n</tool_response>' }}
    {%- elif m.content is string and '</think>' in m.content %}
        {%- set reasoning = m.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {{- '\\n' + m.content.split('</think>')[-1].lstrip('\\n') + '(' + reasoning + ')' }}
    {%- else %}
        {{- m.role + ': ' + (m.content or '') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{%- if enable_thinking is defined and enable_thinking is false %}{{- '\\n<think>\\n\\n</think>' }}{%- endif %}{%- endif %}""", CALLS, {"add_generation_prompt": True, "enable_thinking": False}),
    ("parts of content", """{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }}{% endfor %}{% endif %}{{ loop.nextitem.role if loop.nextitem is defined }}{{ loop.previtem.role if loop.previtem is defined }};{% endfor %}""", PARTS, {}),
    ("whitespace", """  {# a comment #}
    {% if true %}
  kept
    {%- endif +%}
{% for m in messages -%}
    {{- m.role -}}   ,
{%- endfor %}
{% set text %}
block {{ messages | length }}
{% endset %}
{{ text }}{%+ if false %}no{% endif %}
{% raw %}{{ raw }}{% endraw %}
end
""", TALK, {}),
    ("filter and call blocks", """{% filter upper %}{{ messages[0].role }} x{% endfilter %}{% macro wrap(n) %}[{{ caller() }}{{ n }}]{% endmacro %}{% call wrap(2) %}inside{% endcall %}{% set a, b = 1, 'z' %}{{ a }}{{ b }}{% if a == 1 and not b == 'y' or false %}yes{% elif a > 3 %}no{% else %}never{% endif %}{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 3 }}{{ 1 + 2 * 3 - 4 / 2 }}""", TALK, {}),
    ("recursion over a schema", """{%- macro show(spec, depth) -%}
{%- for key, value in spec | dictsort -%}
{{ '\\n' }}{{ '  ' * depth }}{{ key }}: {% if value is mapping %}{{ show(value, depth + 1) }}{% elif value is iterable and value is not string %}{{ value | join(' | ') }}{% else %}{{ value }}{% endif %}
{%- endfor -%}
{%- endmacro -%}
{{ show(tools[0], 0) }}""", TALK, {"tools": TOOLS}),
    ("numbers as Python writes them", """{{ 10 / 4 }} {{ 6 / 2 }} {{ 1e16 }} {{ 1e-7 }} {{ 0.0001 }} {{ 123456789.0 }} {{ 1.5e22 }} {{ 0.1 + 0.2 }} {{ 10 ** 20 }} {{ -7 // 2 }} {{ 2 ** -1 }} {{ [1e20, 2.5e-8, -0.0, 100000000000000000000] | tojson }} {{ {1: 1e-7, 2.5: 1, none: 2} | tojson }}""", TALK, {}),
    ("tojson by place, sorted, tabbed", """{{ {'b': 1, 'a': [1, {}]} | tojson(sort_keys=true, separators=(',', ':')) }} {{ 'é' | tojson(true) }} {{ tools | tojson(false, 2) }} {{ {'a': [1, []]} | tojson(indent='\\t') }} {{ {'a': [1]} | tojson(indent=none) }}{{ [] | tojson(indent=0) }}{{ [[], 1] | tojson(indent=0) }}""", TALK, {"tools": TOOLS}),
    ("tuples", """{{ (1, 'a') }} {{ () }} {{ (1,) }} {{ messages[0].items() | list }} {{ messages[0] | items | list }} {{ {'b': 1, 'a': 2} | dictsort }} {{ (1, 2, 3)[:2] }} {{ [(1, [2])] }} {{ (1,) == [1] }} {{ (1, 'a') | tojson }} {{ [nothing] }}""", TALK, {}),
    ("text that is cut", """{{ 'a.b.c'.rsplit('.', 1) }} {{ 'a\\nb\\r\\nc\\rd\\x0be'.splitlines() }} {{ 'a\\n\\nb\\n'.splitlines(true) }} {{ ' a  b c '.split() }} {{ ' a  b c '.split(none, 1) }} {{ ' a  b c '.rsplit(maxsplit=1) }} {{ 'a b c'.split(maxsplit=1) }} {{ 'a,b'.split(sep=',') }} {{ ''.split() }} {{ ''.split(',') }} {{ 'k=v=w'.partition('=') }} {{ 'k=v=w'.rpartition('=')[0] }} {{ 'none'.partition('=') }} {{ 'none'.rpartition('=') }} {{ '<think>x'.removeprefix('<think>') }} {{ 'x.txt'.removesuffix('.txt') }} {{ 'x'.removesuffix('y') }} {{ '\\x1c x\\u00a0'.strip() }}|{{ 'xyaxy'.strip('yx') }}""", TALK, {}),
    ("text that is searched", """{{ 'hello'.index('l') }} {{ 'hello'.rindex('l') }} {{ 'größe'.find('e') }} {{ 'hello'.find('l', 3) }} {{ 'hello'.find('h', 1) }} {{ 'hello'.rfind('l', 0, 3) }} {{ 'hello'.find('', 9) }} {{ 'hello'.count('l', -2) }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('b', 0, 2) }} {{ 'abc'.startswith('b', 1) }} {{ [1, 2, 1].count(1) }} {{ ['a', 'b'].index('b') }} {{ messages[0].copy() == messages[0] }}""", TALK, {}),
    ("text that is filled up", """{{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'x'.center(4) }}|{{ 'xy'.center(5, '*') }}|{{ 'x'.ljust(3) }}|{{ 'x'.rjust(3, '.') }}|{{ 'long'.center(2) }} {{ 'aBc'.swapcase() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'ab'.islower() }} {{ 'a1'.isalnum() }} {{ '{} and {:>5} {x}'.format('a', 'b', x=3) }} {{ '%s is %d and %.2f' | format('x', 3, 2.5) }}""", TALK, {}),
    ("joiner, cycler and recursion", """{% set sep = joiner(', ') %}{% for m in messages %}{{ sep() }}{{ m.role }}{% endfor %} {% set c = cycler('a', 'b') %}{% for m in messages %}{{ c.next() }}{% endfor %} {% for x in [{'n': 1, 'c': [{'n': 2, 'c': []}]}] recursive %}{{ x.n }}@{{ loop.depth }}{{ loop(x.c) }}{% endfor %} {% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %} {% for a, (b, c) in [(1, (2, 3)), [4, [5, 6]]] %}{{ a }}{{ b }}{{ c }};{% endfor %}{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{% endfor %} {% with a = 1, b = 'c' %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}""", TALK, {}),
    ("kinds of value", """{% for x in [none, 1, 'x', [], (), {}, true, 1.5, nothing] %}{{ x is iterable }} {{ x is sequence }} {{ x is mapping }} {{ x is string }} {{ x is number }} {{ x is integer }} {{ x is float }} {{ x is boolean }} {{ x is none }} {{ x is defined }};{% endfor %}{% for m in [{'content': none}, {'content': [{'text': 'a'}]}, {'content': 'b'}] %}{% if m.content is iterable and m.content is not string %}[{% for p in m.content %}{{ p.text }}{% endfor %}]{% else %}<{{ m.content or '' }}>{% endif %}{% endfor %}""", TALK, {}),
    ("default with names", """{{ 'a' | default('x') }} {{ none | default('x') }} {{ none | default('x', boolean=true) }} {{ '' | default(default_value='e', boolean=True) }} {{ nothing | d }}|{{ nothing | d(default_value='y') }} {{ '' | d('z', true) }}""", TALK, {}),
    ("blocks inside texts", """{{ '{%' }}{%- generation -%}  x  {%- endgeneration +%}  {% raw %}{% generation %}'{{ "{% endraw %}{# it's {% generation %} #}{{ '%}{% generation %}' }}{% set a = '\\'%}' %}{{ a }}""", TALK, {}),
    ("groups and batches", """{% for role, turns in messages | groupby('role') %}{{ role }}:{{ turns | length }};{% endfor %}{{ [1, 2, 3, 4, 5] | batch(2, 'x') | list }} {{ [1, 2, 3, 4, 5] | slice(2) | list }} {{ '<b>a</b>  c' | striptags }} {{ messages | map(attribute='x', default='d') | list }} {{ [1, 2, 3, 4] | select('odd') | list }} {{ [0, 1, '', 'a'] | select | list }} {{ messages | sort(attribute='role') | map(attribute='role') | join(',') }} {{ ['b', 'A', 'a'] | sort(case_sensitive=true) }} {{ 'a\\n\\nb' | indent(2, first=true, blank=true) }}""", TALK, {}),
    ("more of the clock", """{{ strftime_now('%C %f %w %u %U %W %G %g %V %k %l %P %D %x %R %X %r %c [%Z%z] %e %-e %-d %I %%') }}""", TALK, {}),
    ("hidden characters in lists", """{{ ['\\u200b', '\\xa0', '\\u2028', '\\ufeff', '\\x7f', '\\ue000', 'é', "it's", 'a"b', '\\\\'] }} {{ {'\\t': '\\x00'} }}""", TALK, {}),
    ("refusal", """{% if messages[0].role != 'user' %}{{ raise_exception('the chat must begin with ' + 'a user') }}{% endif %}""", TALK, {}),
]


class Stopped(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2001, 9, 9, 1, 46, 40)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--out", required=True)
    o = a.parse_args()
    chat.datetime = Stopped
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    done = []
    for name, template, messages, extra in CASES:
        extra = dict(extra)
        case = {"name": name, "template": template, "messages": messages, "special": special, "add_generation_prompt": extra.pop("add_generation_prompt", False),
                "tools": extra.pop("tools", None), "extra": extra}
        try:
            text = chat.render_jinja_template(conversations=[messages], tools=case["tools"], chat_template=template,
                                              add_generation_prompt=case["add_generation_prompt"], **special, **extra)[0][0]
            case["rendered"] = text
        except Exception as e:
            case["refused"] = str(e)
        print(name, repr(case.get("rendered", case.get("refused")))[:150])
        done.append(case)
    with open(o.out, "w") as f:
        json.dump({"schema": 1, "versions": {"transformers": transformers.__version__}, "now": 1000000000, "cases": done}, f, ensure_ascii=False, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
