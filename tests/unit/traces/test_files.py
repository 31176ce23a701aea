import gzip
import hashlib
import io

import polars as pl
import pytest

from sieve.errors import TraceError
from sieve.traces import files, unpack
from sieve.traces.files import read_file


def fault(path, label="t.csv"):
    with pytest.raises(TraceError) as error:
        read_file(path, label)
    return str(error.value)


def test_gzip_is_found_by_content_and_hashed_as_stored(tmp_path):
    path = tmp_path / "t.bin"
    path.write_bytes(gzip.compress(b"a,b\n1,2\n"))
    file = read_file(path, "given/t.bin")
    assert file.columns == ("a", "b")
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert file.name == "t.bin"
    assert file.where(0) == "given/t.bin, line 2"


def test_parquet_is_found_by_content(tmp_path):
    stream = io.BytesIO()
    pl.DataFrame({"a": [1], "b": [2]}).write_parquet(stream)
    path = tmp_path / "t.csv"
    path.write_bytes(stream.getvalue())
    file = read_file(path, "t.csv")
    assert file.is_parquet
    assert file.columns == ("a", "b")
    assert file.where(4) == "t.csv, row 5"


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"\x00\x01\x02\n", "binary"),
        ("a,b\n1,2\n".encode("utf-16"), "binary"),
        (b"\xff\xfe\xfa\n", "UTF-8"),
        (b"\xef\xbb\xbf\n \n", "empty"),
        (b" , ,\n1,2,3\n", "names no columns"),
        (gzip.compress(b"a,b\n1,2\n")[:-6], "damaged gzip"),
        (b"\x1f\x8bnot gzip at all", "damaged gzip"),
        (gzip.compress(b""), "empty"),
        (b"PAR1" + b"junk" * 20, "damaged Parquet"),
    ],
    ids=lambda value: "content" if isinstance(value, bytes) else value.replace(" ", "_"),
)
def test_unreadable_content(tmp_path, content, part):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    message = fault(path)
    assert message.startswith("t.csv: ")
    assert part in message


def test_folder_and_missing_file(tmp_path):
    assert "a folder" in fault(tmp_path)
    assert "no such file" in fault(tmp_path / "absent")


def test_size_limit_holds_before_and_after_decompression(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 10_000))
    monkeypatch.setattr(unpack, "MAX_FILE_BYTES", 20_000)
    assert "uncompressed" in fault(path)
    path.write_bytes(b"a,b\n" + b"1,2\n" * 10_000)
    assert "uncompressed" in fault(path)


def test_text_that_is_not_utf8_below_the_header(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n1,2\n\xff\xfe,3\n")
    with pytest.raises(TraceError, match="line 3: not UTF-8"):
        files.read_columns(read_file(path, "t.csv"), ("a", "b"))


def test_many_columns_are_shortened_in_messages():
    assert files.listing([f"c{i}" for i in range(20)]).endswith("c11 and 8 more")
