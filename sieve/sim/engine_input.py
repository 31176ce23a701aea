"""What the compiled loops take: requests, settings, a clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sieve.arrays import IntArray
from sieve.sim._kernels.clock import Clock

KeyArray = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class SharedKeys:
    """The block keys that more than one request has; in each request they come first.

    Attributes:
        start: (n,) offset of a request's keys.
        count: (n,) how many of its leading blocks have such keys.
        keys: their keys, 0 .. num_keys - 1.
        num_keys: how many keys there are.
        early_output: whether a prompt may contain what another request is still generating.
    """

    start: IntArray
    count: IntArray
    keys: KeyArray
    num_keys: int
    early_output: bool = False


@dataclass(frozen=True, eq=False)
class EngineInput:
    """Requests as the compiled loops take them; the arrays are described there.

    `keys` is None where they follow from `shared`: its keys first, then private ones.
    """

    settings: IntArray
    accept: IntArray
    window: IntArray
    kind: IntArray
    span: IntArray
    fixed: IntArray
    arrival: IntArray
    prompt: IntArray
    output: IntArray
    level: IntArray
    name_rank: IntArray
    child_start: IntArray
    child: IntArray
    delay: IntArray
    key_start: IntArray
    keys: KeyArray | None
    num_keys: int
    clock: Clock
    bucket: IntArray
    quota: IntArray
    shared: SharedKeys
