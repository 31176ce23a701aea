"""What a request costs outside the engine: HTTP, tokenising, the chat endpoint and its client.

The replay starts when a request reaches the scheduler. These times lie before and after it; they
add to TTFT and E2E and, where one front end serves a burst, let it through one by one.
"""

from __future__ import annotations

import numpy as np

from sieve.arrays import FloatArray, IntArray
from sieve.perf.constants import StepConstants, step_constants


def request_work_s(input_tokens: IntArray, constants: StepConstants | None = None) -> FloatArray:
    """Return the front end's work for each of (n,) requests in seconds; one at a time."""
    c = constants or step_constants()
    return np.asarray(c.request_s + c.request_token_s * input_tokens, np.float64)


def chat_latency_s(constants: StepConstants | None = None) -> float:
    """Return what a chat endpoint and its client add to the first token; it does not queue."""
    return (constants or step_constants()).chat_s


def through_one_server(arrival_s: FloatArray, work_s: FloatArray) -> FloatArray:
    """Return when each of (n,) requests leaves a single server with (n,) service times `work_s`.

    Args:
        arrival_s: (n,) seconds, rising.
        work_s: (n,) seconds.
    """
    done = np.cumsum(work_s)
    start = np.maximum.accumulate(arrival_s - np.append(0.0, done[:-1]))
    return np.asarray(start + done, np.float64)
