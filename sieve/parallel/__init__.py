"""Fan-out: one function over many items, on threads in this process or on Ray.

Both return results in the order of the items and hand every call the same inputs, so they give the
same bytes. A failing item keeps its own error and gains a note that names the candidate.
"""

from sieve.parallel.executors import LocalExecutor, RayExecutor, make_executor

__all__ = ["LocalExecutor", "RayExecutor", "make_executor"]
