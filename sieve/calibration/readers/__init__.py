"""Results of benchmark tools, one reader a module: `read_results` finds the right one."""

from sieve.calibration.readers.detect import read_results
from sieve.calibration.readers.result import Result, Series

__all__ = ["Result", "Series", "read_results"]
