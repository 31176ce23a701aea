"""Requests that wait and requests still to come, inside the compiled loop."""

from __future__ import annotations

from sieve.sim._kernels import jit
from sieve.sim._kernels.layout import (
    FRONT,
    PRIORITY,
    R_ARRIVAL,
    R_HEAP,
    R_LEVEL,
    R_NAME,
    S_WAITING,
)

# ---- Waiting queue: request_queue.py. First come first served: a ring through `links` with the
# sentinel last. Priority: a binary heap.


@jit
def before(req, a, b):
    """Return whether request a goes before b under the priority policy."""
    if req[a, R_LEVEL] != req[b, R_LEVEL]:
        return req[a, R_LEVEL] < req[b, R_LEVEL]
    if req[a, R_ARRIVAL] != req[b, R_ARRIVAL]:
        return req[a, R_ARRIVAL] < req[b, R_ARRIVAL]
    return req[a, R_NAME] < req[b, R_NAME]


@jit
def sift(req, heap, size, i):
    """Restore the heap order after entry i changed."""
    r = heap[i]
    while i > 0 and before(req, r, heap[(i - 1) // 2]):
        parent = (i - 1) // 2
        heap[i] = heap[parent]
        req[heap[i], R_HEAP] = i
        i = parent
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and before(req, heap[child + 1], heap[child]):
            child += 1
        if not before(req, heap[child], r):
            break
        heap[i] = heap[child]
        req[heap[i], R_HEAP] = i
        i = child
    heap[i] = r
    req[r, R_HEAP] = i


@jit
def enqueue(settings, state, req, links, heap, r, side):
    """Put request r into the waiting queue, in front or at the back."""
    if settings[PRIORITY] != 0:
        size = state[S_WAITING]
        heap[size] = r
        req[r, R_HEAP] = size
        sift(req, heap, size + 1, size)
    else:
        end = len(links) - 1
        before = end if side == FRONT else links[end, 1]
        after = links[before, 0]
        links[r, 0] = after
        links[r, 1] = before
        links[before, 0] = r
        links[after, 1] = r
    state[S_WAITING] += 1


@jit
def dequeue(settings, state, req, links, heap, r):
    """Take request r out of the waiting queue, wherever it stands."""
    state[S_WAITING] -= 1
    if settings[PRIORITY] != 0:
        size = state[S_WAITING]
        i = req[r, R_HEAP]
        last = heap[size]
        if last != r:
            heap[i] = last
            req[last, R_HEAP] = i
            sift(req, heap, size, i)
    else:
        after = links[r, 0]
        before = links[r, 1]
        links[before, 0] = after
        links[after, 1] = before


@jit
def head(settings, links, heap):
    """Return the request that is tried first."""
    if settings[PRIORITY] != 0:
        return heap[0]
    return links[len(links) - 1, 0]


# ---- Requests still to come: a heap by (arrival, order of the list).


@jit
def expect(due_at, due, size, at, r):
    """Add request r, arriving at `at`, to the heap of `size` entries."""
    i = size
    while i > 0:
        parent = (i - 1) // 2
        if due_at[parent] < at or (due_at[parent] == at and due[parent] < r):
            break
        due_at[i] = due_at[parent]
        due[i] = due[parent]
        i = parent
    due_at[i] = at
    due[i] = r


@jit
def pop_expected(due_at, due, size):
    """Remove the first of the heap of `size` entries."""
    at = due_at[size - 1]
    r = due[size - 1]
    size -= 1
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and (
            due_at[child + 1] < due_at[child]
            or (due_at[child + 1] == due_at[child] and due[child + 1] < due[child])
        ):
            child += 1
        if at < due_at[child] or (at == due_at[child] and r < due[child]):
            break
        due_at[i] = due_at[child]
        due[i] = due[child]
        i = child
    due_at[i] = at
    due[i] = r
