"""Stop strings, whatever way the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelm_runtime import OptionError
from edgelm_runtime.text.stop_strings import Stopper

letters = st.text("ab\n", max_size=30)


def shown(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    """All text that may be shown, and whether a stop string ended it."""
    stopper, text = Stopper(stops), ""
    for piece in pieces:
        new, stopped = stopper.feed(piece)
        text += new
        if stopped:
            return text, True
    return text + stopper.flush(), False


@settings(max_examples=300, deadline=None)
@given(letters, st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4), st.randoms())
def test_the_split_makes_no_difference_and_nothing_is_lost(
    text: str, stops: list[str], random: object
) -> None:
    """Against a search for the stop string that is complete first, over the whole text."""
    ends = [(end, text[:end]) for end in range(len(text) + 1) if any(text[:end].endswith(s) for s in stops)]
    if ends:
        until = ends[0][1]
        expected = until[: len(until) - max(len(s) for s in stops if until.endswith(s))], True
    else:
        expected = text, False
    cuts = sorted(random.randrange(len(text) + 1) for _ in range(4))  # type: ignore[attr-defined]
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert shown(stops, pieces) == expected
    assert shown(stops, list(text)) == expected


@settings(deadline=None)
@given(letters, st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
def test_text_is_held_back_only_while_it_may_become_a_stop_string(text: str, stops: list[str]) -> None:
    stopper, given_text, seen = Stopper(stops), "", ""
    for character in text:
        new, stopped = stopper.feed(character)
        given_text, seen = given_text + character, seen + new
        if stopped:
            return
        held = given_text[len(seen) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_the_stop_string_that_is_complete_first_wins() -> None:
    assert shown(["bcd", "c"], ["abcd"]) == ("ab", True)
    assert shown(["c", "bc"], ["abcd"]) == ("a", True)
    assert shown(["\n\n"], ["a\n", "b\n", "\nc"]) == ("a\nb", True)


@pytest.mark.parametrize("wrong", ["text", [""], ["a", ""], [1], 5, None])
def test_a_stop_that_is_none_is_an_error(wrong: object) -> None:
    with pytest.raises(OptionError, match="stop"):
        Stopper(wrong)  # type: ignore[arg-type]
