"""`sieve serve`: a local, read-only page over run folders."""

from sieve.serve.app import make_app
from sieve.serve.folders import RunEntry, find_run, list_runs

__all__ = ["RunEntry", "find_run", "list_runs", "make_app"]
