import gzip
import io

import numpy as np
import polars as pl
import pytest

from sieve.errors import TraceError
from sieve.traces import lengths
from sieve.traces.files import read_file


def read(folder, content, name="t.csv"):
    (folder / name).write_bytes(content)
    return lengths.read(read_file(folder / name, name))


def parquet(**columns):
    stream = io.BytesIO()
    pl.DataFrame(columns).write_parquet(stream)
    return stream.getvalue()


CSV = b"output_length,input_length\n5,50\n6,60\n"


@pytest.mark.parametrize(
    "content",
    [
        CSV,
        gzip.compress(CSV),
        b"num_prefill_tokens,num_decode_tokens,pd_ratio\n50,5,10\n60,6,10\n",
        parquet(input_length=[50, 60], output_length=[5, 6]),
        parquet(output_length=[5.0, 6.0], other=["a", "b"], input_length=[50, 60]),
    ],
    ids=["csv", "gzip", "vidur_names", "parquet", "parquet_floats"],
)
def test_pairs_stay_together_in_every_form(tmp_path, content):
    table = read(tmp_path, content)
    assert table.input_tokens.tolist() == [50, 60]
    assert table.output_tokens.tolist() == [5, 6]
    assert table.input_tokens.dtype == np.int64
    assert table.notes == ()


def test_failed_rows_are_left_out_and_counted(tmp_path):
    table = read(tmp_path, CSV + b"0,70\n")
    assert table.input_tokens.tolist() == [50, 60]
    assert table.notes == ("1 failed requests (0 output tokens) left out",)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (CSV + b"3,0\n", "line 4: input_length is '0'"),
        (CSV + b"2.5,3\n", "line 4: output_length is '2.5'"),
        (parquet(input_length=[1, None], output_length=[1, 1]), "row 2: input_length is empty"),
        (parquet(input_length=[1, -1], output_length=[1, 1]), "row 2: input_length is '-1'"),
        (parquet(input_length=[1.0, np.nan], output_length=[1, 1]), "row 2: input_length is 'nan'"),
        (parquet(input_length=[[1]], output_length=[1]), "input_length is List"),
        (parquet(input_length=[True], output_length=[1]), "input_length is Boolean"),
        (parquet(input_length=[1], output_length=[0]), "0 output tokens"),
        (parquet(input_length=[], output_length=[]), "no requests"),
        (b"input_length,size\n1,1\n", "columns found: input_length, size"),
    ],
)
def test_faults_say_where(tmp_path, content, part):
    with pytest.raises(TraceError) as error:
        read(tmp_path, content)
    assert part in str(error.value)


def test_rows_are_drawn_without_replacement_then_again():
    rows = lengths.draw_rows(5, 12, np.random.default_rng(3))
    assert sorted(rows[:5]) == [0, 1, 2, 3, 4]
    assert sorted(rows[5:10]) == [0, 1, 2, 3, 4]
    assert len(set(rows[10:])) == 2


def test_a_shorter_draw_is_the_start_of_a_longer_one():
    short = lengths.draw_rows(50, 20, np.random.default_rng(3))
    longer = lengths.draw_rows(50, 120, np.random.default_rng(3))
    np.testing.assert_array_equal(short, longer[:20])
