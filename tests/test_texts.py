"""The texts that users see change only on purpose: tests/texts.txt lists them."""

from __future__ import annotations

import difflib

from tests.support import write_texts


def _differences(listed: set[str], found: dict[str, str]) -> list[str]:
    """Returns a line for each text that was added, removed or changed."""
    removed = sorted(listed - found.keys())
    lines = []
    for text in sorted(found.keys() - listed):
        old = difflib.get_close_matches(text, removed, n=1)
        lines.append(f"{found[text]}: {text!r}" + (f", was {old[0]!r}" if old else ", is new"))
        removed = [other for other in removed if other not in old]
    return lines + [f"{text!r} is gone" for text in removed]


def test_the_texts_that_users_see_are_those_of_the_list():
    changed = "\n".join(_differences(write_texts.listed(), write_texts.texts()))
    assert not changed, (
        f"Texts that users see have changed:\n{changed}\n"
        "If each change is on purpose, rewrite the list: python -m tests.support.write_texts"
    )


def test_a_change_is_named_with_its_file_and_its_old_text():
    listed = {"no operator is called '{}'.", "the dividend is 0", "the run is healthy"}
    found = {"no operator has the name '{}'.": "a.py:1", "the run is healthy": "b.py:2", "a loss is NaN": "c.cpp:3"}
    assert _differences(listed, found) == [
        "c.cpp:3: 'a loss is NaN', is new",
        "a.py:1: \"no operator has the name '{}'.\", was \"no operator is called '{}'.\"",
        "'the dividend is 0' is gone",
    ]


def test_adjacent_literals_are_one_text_and_comments_are_none():
    cpp = 'f("a value of "  // a "remark here"\n  "two words"); \'"\'; g(R"(raw "text")"); /* "no text" */ h("1\\n2")'
    assert [text for _, text in write_texts._cpp_literals(cpp) if text] == [
        "a value of two words",
        'raw "text"',
        "1\n2",
    ]
