"""`sieve nightly`: what is replayed, when the grid is searched, what is recorded, which code."""

from __future__ import annotations

import fcntl
import json
import sqlite3
import sys

import pytest

from sieve.cli.main import main
from sieve.errors import ResultError, SpecError, TraceError
from sieve.jobs import history as store
from sieve.jobs.history import FILE, LOCK, PAGE, open_history, read_history
from sieve.jobs.nightly import nightly
from sieve.report.nightly import history_page, night_lines


def call(monkeypatch, capsys, *args):
    monkeypatch.setattr(sys, "argv", ["sieve", *map(str, args)])
    with pytest.raises(SystemExit) as caught:
        main()
    out, err = capsys.readouterr()
    return caught.value.code, out, err


def night_of(folder):
    """Return the time at which the last night was recorded."""
    with open_history(folder) as nights:
        return next(iter(nights.records(1)))["recorded_at"]


@pytest.fixture
def night(tmp_path, service):
    """Run one night and return its record."""

    def run(day, changes=None, **options):
        return nightly(service(changes), traffic=day, history=tmp_path / "history", **options)

    return run


def test_the_first_night_is_a_run_and_the_next_replays_its_tie_set(tmp_path, night, day_file):
    first = night(day_file("a.csv", seed=1))
    assert (first["night"], first["exit_code"], first["status"]) == (1, 0, "answer")
    assert first["why"] == ["first night"]
    assert first["incumbent"] is None
    result = json.loads((tmp_path / "history" / first["run"] / "result.json").read_text())
    assert first["recommended"]["candidate_id"] == result["ranking"][0]["candidate_id"]
    assert first["tie_group"] == result["answer"]["tie_group"]

    second = night(day_file("b.csv", seed=2))
    assert (second["night"], second["exit_code"]) == (2, 0)
    assert not second["searched"]
    assert second["why"] == []
    assert second["recommended"]["candidate_id"] == first["recommended"]["candidate_id"]
    assert second["incumbent"]["breaks_slo"] is False
    assert {row["candidate_id"] for row in second["replayed"]} <= set(first["tie_group"])
    assert second["drift"]["against"] == {"night": 1, "day": "a.csv"}
    assert second["robust"]["num_nights"] == 2
    assert set(second["robust"]["in_every_tie_group"]) <= set(first["tie_group"])
    assert second["sizing"]["num_days"] == 1


def test_the_same_inputs_give_the_same_answer_and_no_second_row(tmp_path, night, day_file):
    first = night(day_file("a.csv"))
    second = night(day_file("b.csv", seed=2))
    (tmp_path / "copy.csv").write_bytes((tmp_path / "b.csv").read_bytes())
    for name in ("b.csv", "copy.csv"):
        again = night(tmp_path / name)
        assert again["repeated"] is True
        assert {k: v for k, v in again.items() if k != "repeated"} == json.loads(
            json.dumps({k: v for k, v in second.items() if k != "repeated"})
        )
    assert night(tmp_path / "a.csv")["night"] == first["night"]
    assert len(read_history(tmp_path / "history")) == 2


def test_much_more_load_recommends_another_with_code_6(tmp_path, night, day_file):
    first = night(day_file("a.csv"))
    assert first["recommended"]["num_gpus"] == 1
    second = night(day_file("b.csv", n=1500, rate=110.0))
    assert second["searched"]
    assert any("peak_rate" in text for text in second["why"])
    assert second["exit_code"] == 6
    assert second["changed"]
    assert second["incumbent"]["candidate_id"] == first["recommended"]["candidate_id"]
    assert second["incumbent"]["breaks_slo"] is True
    assert second["recommended"]["num_gpus"] > 1
    assert second["recommended"]["candidate_id"] not in first["tie_group"]
    third = night(day_file("c.csv", n=1500, rate=110.0, seed=3))
    assert third["exit_code"] == 0  # adopted: it is the incumbent now
    rows = read_history(tmp_path / "history")
    assert [row["exit_code"] for row in rows] == [0, 6, 0]
    assert [row["incumbent_breaks_slo"] for row in rows] == [None, 1, 0]


def test_no_candidate_left_is_code_4_and_recovery_is_another(night, day_file):
    night(day_file("a.csv"))
    hopeless = night(day_file("b.csv", n=1500, rate=4000.0, isl=2000))
    assert (hopeless["exit_code"], hopeless["recommended"]) == (4, None)
    assert hopeless["incumbent"]["breaks_slo"] is True
    back = night(day_file("c.csv", seed=5))
    assert back["why"][0] == "the last night had no recommendation"
    assert back["exit_code"] == 6
    assert back["recommended"] is not None


def test_a_first_night_without_an_answer_has_the_code_of_the_run(night, day_file):
    assert night(day_file("a.csv"), {"slo": {"ttft_p99": "1 us"}})["exit_code"] == 4


def test_a_stricter_objective_is_noticed_and_searched(night, day_file):
    night(day_file("a.csv"))
    found = night(day_file("b.csv", seed=2), {"slo.e2e_p99": "1 s"})
    assert found["searched"]
    assert "spec" in found["why"][0]


def test_keys_of_the_spec_that_hold_for_every_day_are_noted(night, day_file):
    record = night(day_file("a.csv"), {"traffic.rate_per_s": 2})
    assert any("traffic.rate_per_s" in text for text in record["notes"])
    assert record["traffic"]["rate_per_s"] == pytest.approx(4.0, rel=0.2)


def test_faults_of_the_day_record_nothing(tmp_path, night, day_file, service):
    night(day_file("a.csv"))
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    (tmp_path / "bad.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2026-11-16 00:00:00.0,5,-1\n"
    )
    for name, words in (("empty.csv", "empty"), ("header.csv", ""), ("bad.csv", "line 2")):
        with pytest.raises(TraceError) as caught:
            night(tmp_path / name)
        assert name in str(caught.value)
        assert words in str(caught.value)
    with pytest.raises(TraceError, match="no such file"):
        night(tmp_path / "none.csv")
    with pytest.raises(SpecError):
        nightly(tmp_path / "none.yaml", traffic=tmp_path / "a.csv", history=tmp_path / "history")
    assert len(read_history(tmp_path / "history")) == 1


def test_a_folder_is_for_one_service(tmp_path, night, day_file, service):
    night(day_file("a.csv"))
    other = service(name="other")
    with pytest.raises(ResultError, match="the history of 'service'"):
        nightly(other, traffic=day_file("b.csv", seed=2), history=tmp_path / "history")


def test_two_runs_at_once_are_refused(tmp_path, night, day_file):
    (tmp_path / "history").mkdir()
    with (tmp_path / "history" / LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ResultError, match="another run"):
            night(day_file())


def foreign(path, application=0, version=0, table="CREATE TABLE mine (a)"):
    connection = sqlite3.connect(path)
    connection.execute(table)
    connection.execute(f"PRAGMA application_id = {application}")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


def test_other_databases_are_refused_and_left_as_they_are(tmp_path):
    cases = {
        "another program": {},
        "schema version 99": {"application": store.APPLICATION_ID, "version": 99},
        "damaged": {"application": store.APPLICATION_ID, "version": store.SCHEMA_VERSION},
    }
    for i, (words, options) in enumerate(cases.items()):
        folder = tmp_path / str(i)
        folder.mkdir()
        foreign(folder / FILE, **options)
        before = (folder / FILE).read_bytes()
        with pytest.raises(ResultError, match=words), open_history(folder):
            pass
        with pytest.raises(ResultError, match=words):
            read_history(folder)
        assert (folder / FILE).read_bytes() == before
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / FILE).write_text("not a database at all, but long enough " * 9)
    with pytest.raises(ResultError, match="not a history"), open_history(tmp_path / "text"):
        pass
    (tmp_path / "file").write_text("x")
    with pytest.raises(ResultError, match="is a file"), open_history(tmp_path / "file"):
        pass
    with (
        pytest.raises(ResultError, match="cannot be written"),
        open_history(tmp_path / "file" / "below"),
    ):
        pass


def test_the_file_is_ours_versioned_and_in_wal_mode(tmp_path):
    with open_history(tmp_path / "h"):
        pass
    connection = sqlite3.connect(tmp_path / "h" / FILE)
    facts = [
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("application_id", "user_version", "journal_mode")
    ]
    connection.close()
    assert facts == [store.APPLICATION_ID, store.SCHEMA_VERSION, "wal"]


def test_a_damaged_record_is_named(tmp_path, night, day_file):
    night(day_file("a.csv"))
    connection = sqlite3.connect(tmp_path / "history" / FILE)
    connection.execute("UPDATE nights SET record = '{\"night\": 1}'")
    connection.commit()
    connection.close()
    with pytest.raises(ResultError, match="damaged"):
        night(day_file("b.csv", seed=2))


def row(i, **changes):
    return dict.fromkeys(store.COLUMNS) | {
        "night": i, "day": f"day {i}", "name": "<b>svc</b>", "exit_code": 0, "searched": 0,
        "recommended": f"c{i // 3000}", "num_gpus": 2, "margin": 0.2, "usd_per_mtok": 1 + i % 7,
        "usd_per_hour": 5.0, "drift": "none", "rate_per_s": 3.0, "peak_rate_per_s": 4.0 + i % 5,
        "incumbent_breaks_slo": 0, "input_p50_tokens": 500.0, "output_p50_tokens": 60.0,
    } | changes  # fmt: skip


def test_a_page_of_ten_thousand_nights_stays_small():
    rows = [row(i) for i in range(1, 10_001)]
    page = history_page(rows)
    assert len(page) < 500_000
    assert page.count('class="change"') == 3 * 7  # at 3,000, 6,000 and 9,000 in each chart
    assert "10,000 nights" in page
    assert "day 10000" in page
    assert "day 9800<" not in page  # the table holds the last 200


def test_a_page_escapes_texts_and_bears_values_of_any_type():
    rows = [
        row(1, day="<script>alert(1)</script>", recommended='"><img src=x>'),
        row(2, usd_per_mtok="text", margin=None, exit_code="<i>", peak_rate_per_s=float("inf")),
    ]
    page = history_page(rows)
    assert "<script>alert" not in page
    assert "<img src" not in page
    assert "<i>" not in page
    assert "&lt;b&gt;svc" in page
    assert "http:" not in page
    assert "https:" not in page
    assert "default-src 'none'" in page
    assert "no nights yet" in history_page([])


def test_the_command_prints_the_night_and_ends_with_its_code(
    tmp_path, service, day_file, monkeypatch, capsys
):
    args = ("nightly", service(), "--history", tmp_path / "h", "--traffic")
    code, out, err = call(monkeypatch, capsys, *args, day_file("a.csv"), "--json")
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert record["recommended"]["verdict"] == "clears"
    code, out, _ = call(monkeypatch, capsys, *args, day_file("b.csv", n=1500, rate=110.0))
    assert code == 6
    assert "another deployment is recommended" in out
    assert "from 1 earlier day)" in " ".join(out.split())
    assert out.rstrip().splitlines()[-1].startswith("Next    sieve plan ")
    before = (tmp_path / "h" / FILE).read_bytes()
    _, again, _ = call(monkeypatch, capsys, *args, tmp_path / "b.csv")
    said = f"This day was recorded already, at {night_of(tmp_path / 'h')}; nothing was changed."
    assert said in " ".join(again.split())
    assert (tmp_path / "h" / FILE).read_bytes() == before
    assert "breaks its objectives" in out
    assert (tmp_path / "h" / PAGE).read_text().count("<tr>") == 3
    code, _, err = call(monkeypatch, capsys, *args, tmp_path / "none.csv")
    assert code == 2
    assert "no such file" in err
    assert not any("recorded already" in line for line in night_lines(record))
