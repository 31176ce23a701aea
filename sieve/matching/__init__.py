"""Measured results beside their predictions: which file, which result, which candidate."""

from sieve.matching.files import Matched, match_file, match_table
from sieve.matching.in_run import Run, open_run
from sieve.matching.stated import Stated, check_model

__all__ = ["Matched", "Run", "Stated", "check_model", "match_file", "match_table", "open_run"]
