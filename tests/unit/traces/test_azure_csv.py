from pathlib import Path

import numpy as np
import pytest

from sieve.errors import TraceError
from sieve.traces import azure_csv
from sieve.traces.files import read_file

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def read(folder: Path, text: str, name: str = "day.csv"):
    path = folder / name
    path.write_bytes(text.encode())
    return azure_csv.read(read_file(path, name))


def test_times_keep_100_ns(tmp_path):
    requests = read(
        tmp_path,
        HEADER
        + "2023-11-16 18:15:46.6805900,374,44\n"
        + "2023-11-16 18:15:46.6805901,396,109\n"
        + "2023-11-16 18:16:50.9951690,879,55\n",
    )
    assert requests.arrival_s.tolist() == [0.0, 1e-7, 64.314579]
    assert requests.input_tokens.tolist() == [374, 396, 879]
    assert requests.output_tokens.tolist() == [44, 109, 55]
    assert requests.closed_loop_users is None
    assert requests.notes == ()
    assert requests.source == "day.csv"


def test_precision_survives_a_year(tmp_path):
    requests = read(
        tmp_path, HEADER + "2023-01-01 00:00:00.1234567,1,1\n2024-01-01 00:00:00.1234568,1,1\n"
    )
    # One nanosecond of a float of 3e7 s is 4 units in the last place.
    assert requests.arrival_s[1] == pytest.approx(365 * 86400 + 1e-7, abs=4e-9)


def test_time_zones_are_subtracted(tmp_path):
    requests = read(
        tmp_path,
        HEADER
        + "2024-05-10 00:00:00.009930+00:00,10,1\n"
        + "2024-05-10T02:00:01.009930+02:00,20,2\n"
        + "2024-05-09 18:30:02.009930-0530,30,3\n"
        + "2024-05-10 00:00:03.00993Z,40,4\n",
    )
    assert requests.arrival_s.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert requests.input_tokens.tolist() == [10, 20, 30, 40]


def test_rows_are_sorted_and_ties_keep_their_order(tmp_path):
    requests = read(
        tmp_path,
        HEADER
        + "2023-11-16 18:00:02,3,3\n2023-11-16 18:00:00,1,1\n2023-11-16 18:00:02,4,4\n"
        + "2023-11-16 18:00:01,2,2\n",
    )
    assert requests.input_tokens.tolist() == [1, 2, 3, 4]
    assert requests.arrival_s.tolist() == [0.0, 1.0, 2.0, 2.0]
    assert "sorted" in requests.notes[0]


def test_failed_requests_are_left_out_and_counted(tmp_path):
    requests = read(
        tmp_path,
        HEADER + "2023-11-16 18:00:00,9,0\n2023-11-16 18:00:05,1,1\n2023-11-16 18:00:06,2,2\n",
    )
    assert requests.arrival_s.tolist() == [0.0, 1.0]
    assert requests.notes == ("1 requests with GeneratedTokens 0 left out",)


def test_other_columns_order_quotes_blank_lines_and_line_ends_do_not_matter(tmp_path):
    requests = read(
        tmp_path,
        "\ufeff\r\nGeneratedTokens, user ,ContextTokens,TIMESTAMP\r\n"
        '5,a,"50",2023-11-16 18:00:00\r\n\r\n6,b, 60.0,"2023-11-16 18:00:01"\r\n\r\n',
    )
    assert requests.input_tokens.tolist() == [50, 60]
    assert requests.output_tokens.tolist() == [5, 6]


GOOD = "2023-11-16 18:00:00,1,1\n"


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ("2023-11-16 18:00:01,-4,1\n", ("line 3", "ContextTokens is '-4'")),
        ("2023-11-16 18:00:01,0,1\n", ("line 3", "ContextTokens is '0'")),
        ("2023-11-16 18:00:01,4,-1\n", ("line 3", "GeneratedTokens is '-1'")),
        ("2023-11-16 18:00:01,4.5,1\n", ("line 3", "'4.5'", "whole number")),
        ("2023-11-16 18:00:01,nan,1\n", ("line 3", "'nan'")),
        ("2023-11-16 18:00:01,inf,1\n", ("line 3", "'inf'")),
        ("2023-11-16 18:00:01,,1\n", ("line 3", "empty")),
        ("2023-11-16 18:00:01,12\n", ("line 3", "GeneratedTokens is empty")),
        ("2023-11-16 18:00:01,12,many\n", ("line 3", "'many'")),
        ("2023-11-16 18:00:01,10000001,1\n", ("line 3", "10000000")),
        ("2023-11-16 18:00:01,1,1\n\n12.5,4,1\n", ("line 5", "TIMESTAMP is '12.5'")),
        ("2023-02-30 18:00:01,4,1\n", ("line 3", "2023-02-30")),
        ("2023-11-16 18:00:01.1234567890,4,1\n", ("line 3", "TIMESTAMP")),
        (",4,1\n", ("line 3", "TIMESTAMP is ''")),
        ("2023-11-16 18:00:01Z,4,1\n", ("line 3", "time zone")),
        ("2023-11-16 18:00:01,4,1,9\n", ("line 3", "4 fields", "3")),
        ("9999-11-16 18:00:01,4,1\n", ("span",)),
    ],
)
def test_faults_name_file_line_and_value(tmp_path, rows, parts):
    with pytest.raises(TraceError) as error:
        read(tmp_path, HEADER + GOOD + rows)
    message = str(error.value)
    assert message.startswith("day.csv")
    assert all(part in message for part in parts), message


def test_all_failed_is_an_error(tmp_path):
    with pytest.raises(TraceError, match="every request has GeneratedTokens 0"):
        read(tmp_path, HEADER + "2023-11-16 18:00:00,9,0\n")


def test_header_without_rows_is_an_error(tmp_path):
    with pytest.raises(TraceError, match="no requests below the header"):
        read(tmp_path, HEADER)


def test_missing_column_lists_those_found(tmp_path):
    with pytest.raises(TraceError, match="TIMESTAMP is missing; columns found: time, Context"):
        read(tmp_path, "time,ContextTokens,GeneratedTokens\n1,2,3\n")


def test_column_given_twice_is_an_error(tmp_path):
    with pytest.raises(TraceError, match="ContextTokens is there more than once"):
        read(tmp_path, "TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n1,2,3,4\n")


def test_twenty_thousand_rows_are_read(tmp_path):
    rng = np.random.default_rng(1)
    seconds = np.sort(rng.integers(0, 3600, 20_000))
    rows = "".join(
        f"2023-11-16 18:{s // 60:02d}:{s % 60:02d}.1234567,{s % 50 + 1},{s % 9 + 1}\n"
        for s in seconds.tolist()
    )
    read(tmp_path, HEADER + GOOD)
    requests = read(tmp_path, HEADER + rows)
    assert len(requests) == 20_000
    np.testing.assert_array_equal(requests.arrival_s, seconds - seconds[0])
