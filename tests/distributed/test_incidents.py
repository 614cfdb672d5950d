"""Findings of several logs as one story."""

from __future__ import annotations

import tracemalloc

from tests.support.finding_logs import finding_of, masked_row, received, write_log
from torchnan import cli, findings
from torchnan.distributed.incidents import Sighting, Story, incidents, name_ranks


def story_of(*fields):
    return incidents(map(finding_of, fields))


def test_a_value_of_one_rank_that_others_received_is_one_incident():
    (incident,) = story_of(*[received(rank=r, name=f"p{i}") for r in (0, 2, 3) for i in range(9)], masked_row(rank=1))
    assert (incident.first.op, incident.first.rank, incident.count) == ("aten::_softmax", 1, 1)
    assert len(incident.received) == 27
    assert incident.elsewhere == "received by ranks 0, 2, 3 through allreduce_"


def test_a_value_that_several_ranks_made_is_attributed_to_the_first():
    (incident,) = story_of(
        masked_row(rank=2, step=9), masked_row(rank=0, step=9), masked_row(rank=1, step=8, repeats=3)
    )
    assert (incident.first.rank, incident.first.step, incident.count) == (1, 8, 6)
    assert incident.again == [Sighting(2, 9), Sighting(0, 9)]
    assert incident.elsewhere == "made by ranks 0, 2, too"


def test_what_one_rank_made_and_did_not_use_belongs_to_the_rank_where_it_did_harm():
    """All ranks compute a metric, and one prints it."""
    (incident,) = story_of(masked_row(rank=1, level="warning"), masked_row(rank=2, level="note"), masked_row(rank=0))
    assert (incident.first.rank, incident.first.level, incident.count) == (0, "error", 3)
    assert incident.elsewhere == "made by ranks 1, 2, too"


def test_what_a_rank_did_not_use_is_separate_from_what_did_harm_there():
    error, warning = story_of(masked_row(rank=0, step=3, level="warning"), masked_row(rank=0, step=4))
    assert (error.first.step, warning.first.step) == (4, 3)


def test_a_received_value_belongs_to_its_own_step_or_the_last_before():
    first, second = story_of(
        received(rank=0, step=20),
        received(rank=0, step=35),
        masked_row(rank=1, step=20),
        masked_row(rank=1, step=30, op="aten::log"),
    )
    assert [one.step for one in first.received] == [20]
    assert [one.step for one in second.received] == [35]


def test_the_harm_is_that_of_the_rank_where_it_was_done():
    harmless = {"kind": "none", "name": None, "file": "", "line": 0, "applied": None, "step": None}
    maker = masked_row(rank=1, step=4, level="note", harm=harmless)
    (incident,) = story_of(received(rank=0, step=4, name="w"), maker)
    assert (incident.first.rank, incident.first.level) == (1, "error")
    assert incident.first.harm == finding_of(received(rank=0, step=4, name="w")).harm


def test_of_several_causes_a_received_value_belongs_to_the_first_of_another_rank():
    """A step of an optimizer makes a value in each parameter, and the next averaging sends them."""
    own, first, second = story_of(
        received(rank=0, step=3),
        masked_row(rank=0, step=2, op="a::own"),
        masked_row(rank=1, step=2, op="a::first"),
        masked_row(rank=1, step=2, op="a::second"),
    )
    assert [one.first.op for one in (own, first, second)] == ["a::own", "a::first", "a::second"]
    assert [len(one.received) for one in (own, first, second)] == [0, 1, 0]


def test_a_harmless_value_was_not_received_by_others():
    error, warning = story_of(masked_row(level="warning", rank=0), received(rank=2), masked_row(rank=1, op="a::b"))
    assert [(one.first.op, len(one.received)) for one in (error, warning)] == [("a::b", 1), ("aten::_softmax", 0)]


def test_a_received_value_without_a_known_maker_is_a_separate_incident():
    incident, later = story_of(received(rank=0, step=3), received(rank=2, step=3), masked_row(rank=1, step=9))
    assert (incident.first.op, len(incident.received), later.first.step) == ("c10d::allreduce_", 1, 9)


def test_a_rank_that_counts_no_steps_receives_from_any_step():
    """It evaluates what another rank trains."""
    (incident,) = story_of(received(rank=0, step=1), masked_row(rank=1, step=4, level="note"))
    assert (incident.first.rank, incident.first.level) == (1, "error")
    assert incident.received == [Sighting(0, 1, "allreduce_")]


def test_errors_come_first_then_the_earliest():
    story = story_of(masked_row(level="warning", step=1), masked_row(op="a::b", step=5), masked_row(op="a::c", step=4))
    assert [(one.first.level, one.first.step) for one in story] == [("error", 4), ("error", 5), ("warning", 1)]


def test_ranks_in_words():
    assert name_ranks([3, 0, 1, 2, 7]) == "ranks 0 to 3, 7"
    assert name_ranks([4]) == "rank 4"
    assert name_ranks([None]) == "another process"
    assert name_ranks(range(0, 2048, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 1,012 more"


def test_the_logs_of_other_ranks_are_found_by_their_names(tmp_path):
    for rank in (0, 2, 10):
        write_log(tmp_path / f"a-rank-{rank}.jsonl", masked_row(rank=rank))
    write_log(tmp_path / "b-rank-1.jsonl", masked_row(rank=1))
    (tmp_path / "note.jsonl").write_text("{}\n")
    names = [path.name for path in findings.logs_at(tmp_path / "a-rank-2.jsonl")]
    assert names == ["a-rank-0.jsonl", "a-rank-2.jsonl", "a-rank-10.jsonl"]
    names = [path.name for path in findings.logs_at(tmp_path)]
    assert names == ["a-rank-0.jsonl", "b-rank-1.jsonl", "a-rank-2.jsonl", "a-rank-10.jsonl"]


def test_show_merges_the_logs_of_ranks(tmp_path, capsys):
    write_log(tmp_path / "rank-0.jsonl", received(rank=0))
    write_log(tmp_path / "rank-1.jsonl", masked_row(rank=1)).open("a").write("damaged\n")
    assert cli.main(["show", str(tmp_path / "rank-0.jsonl")]) == 0
    shown = capsys.readouterr().out
    assert shown.count("torchnan: NaN at step 17") == 1
    assert "\n  ranks     received by rank 0 through allreduce_\n" in shown
    assert f"2 logs, {tmp_path}/rank-0.jsonl to {tmp_path}/rank-1.jsonl: 2 findings, 1 distinct\n" in shown
    assert shown.endswith(f"{tmp_path}/rank-1.jsonl:\nignored: 8 bytes\n  line 2: it is not a finding\n")


def test_a_story_can_be_told_again_and_holds_one_finding_of_a_cause():
    story = Story()
    for rank in range(100):
        story.add(finding_of(masked_row(rank=rank, step=1 + rank % 3)))
        story.add(finding_of(received(rank=rank, step=2)))
    told = story.incidents()
    assert story.incidents() == told
    (incident,) = told
    assert (story.count, incident.count, len(incident.again), len(incident.received)) == (200, 100, 99, 100)
    assert story.ranks == set(range(100))


def test_a_thousand_logs_are_shown_in_the_memory_of_their_causes(tmp_path):
    """Findings that are folded are let go of: ten times as many lines take no more memory."""
    few, many = ([masked_row(rank=0, step=1 + i, op=f"a::b{i % 10}") for i in range(n)] for n in (50, 2000))
    peaks = []
    for rows in (few, many):
        write_log(tmp_path / "findings.jsonl", *rows)
        tracemalloc.start()
        story = Story()
        for finding in findings.LogStream(tmp_path / "findings.jsonl"):
            story.add(finding)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (story.count, len(story.incidents())) == (2000, 10)
    assert peaks[1] < peaks[0] + 2000 * 400  # bytes: a sighting, and its place in the list; a finding has thousands
