"""The comparison with peers, as far as it goes without them: cases that hang together, ratios, and the table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).parent / "benchmarks" / "peers"
sys.path.insert(0, str(PEERS))
try:
    import cases
    import install
    import run
    import serving
finally:
    sys.path.remove(str(PEERS))


@pytest.mark.parametrize("case", (*cases.CASES, *cases.LARGE_CASES), ids=lambda case: case.title)
def test_what_a_case_names_exists(case: cases.Case) -> None:
    assert case.kind in {*run.KINDS, "start", "memory"}
    names = [subject.name for subject in case.subjects]
    assert len(set(names)) == len(names)
    for goal in case.goals:
        assert {goal.ours, goal.peer} <= set(names)
    for subject in case.subjects:
        if subject.adapter != "command":
            assert (PEERS / "adapters" / f"{subject.adapter}.py").exists()
            assert subject.model in install.RECIPES | install.LARGE_RECIPES
        assert subject.environment == "edgelm" or (PEERS / f"requirements-{subject.environment}.txt").exists()


def test_ratios_are_of_pairs_and_above_one_where_edgelm_is_better() -> None:
    speed, time = (cases.Case("", kind, ()) for kind in ("decode", "total"))
    ours, peer = {"values": [10.0, 20.0, 40.0]}, {"values": [5.0, 10.0, 5.0]}
    assert run.ratios(speed, ours, peer) == 2
    assert run.ratios(time, ours, peer) == 0.5
    assert run.ratios(time, ours, {"left_out": "not installed"}) is None


def test_table_says_what_was_left_out() -> None:
    one, two = (cases.Subject(name, "edgelm", "edgelm", "") for name in ("edgelm", "peer"))
    case = cases.Case("speed", "decode", (one, two), goals=(cases.Goal("edgelm", "peer", 1.5),))
    results = {"edgelm": {"values": [3.0, 1.0, 2.0], "version": ""}, "peer": {"left_out": "not installed"}}
    lines = run.table([(case, results)]).splitlines()
    assert "| speed | edgelm | 2 |" in lines
    assert "| speed | peer | not installed |" in lines
    assert "| speed | edgelm | peer | - | 1.50 |" in lines


def test_a_missing_peer_is_left_out(tmp_path: Path) -> None:
    case = next(case for case in cases.CASES if case.kind == "decode")
    results = run.measure(case, tmp_path, 1, 1)
    assert len(results) == len(case.subjects)
    for subject in case.subjects:
        words = "there is no" if subject.environment == "edgelm" else "is not installed"
        assert words in results[subject.name]["left_out"]


def test_the_servers_table_has_medians_and_the_rounds_ratios() -> None:
    rounds = [
        {"edgelm": {"speed": value}, "llama.cpp": {"speed": other}}
        for value, other in ((2.0, 1.0), (4.0, 1.0), (30.0, 10.0))
    ]
    assert serving.table(rounds).splitlines()[2] == "| speed | 4 | 1 | 3.00 |"
    alone = [{"edgelm": figures["edgelm"]} for figures in rounds]
    assert serving.table(alone).splitlines()[2] == "| speed | 4 |  |"


def test_no_two_requests_to_the_servers_begin_alike() -> None:
    prompts = [tuple(serving.ids(8, number)) for number in range(500)]
    assert len({prompt[0] for prompt in prompts}) == len(prompts)
