"""The replay of a measured run and its metrics as the client saw them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sieve.arrays import FloatArray, Requests, SimResult, StepTable
from sieve.errors import ResultError
from sieve.perf.base import ServingShape
from sieve.perf.compose import StepParts, assemble, step_parts
from sieve.perf.constants import StepConstants, step_constants
from sieve.perf.front_end import chat_latency_s, request_work_s, through_one_server
from sieve.sim.metrics import gap_statistic, per_request
from sieve.sim.replay import ReplaySettings, simulate
from sieve.verify.measured_setup import V1_SINCE, Setup


def shape_of(setup: Setup) -> ServingShape:
    """Return the replica of a setup as far as step times go."""
    longest = int((setup.requests.input_tokens + setup.requests.output_tokens).max())
    return ServingShape(
        setup.model, setup.gpu, setup.tp, setup.pp, setup.ep, setup.weight_dtype,
        setup.kv_cache_dtype, setup.max_num_batched_tokens, setup.max_num_seqs,
        max(longest, 4096), setup.weight_bytes, gpus_per_node=max(8, setup.tp * setup.dp),
        dp=setup.dp,
    )  # fmt: skip


class Replays:
    """Replays setups; what does not depend on constants is prepared once per replica.

    Attributes:
        constants: of the step-time model.
    """

    def __init__(self, constants: StepConstants | None = None) -> None:
        self.constants = constants or step_constants()
        self._parts: dict[tuple[object, ...], StepParts] = {}

    def table(self, setup: Setup) -> StepTable:
        """Return the step table of a setup."""
        shape = shape_of(setup)
        key = (
            shape.model.name, shape.gpu.name, shape.tp, shape.pp, shape.ep, shape.weight_dtype,
            shape.kv_cache_dtype, shape.max_num_batched_tokens, shape.max_num_seqs,
            shape.max_context, shape.weight_bytes_per_param, shape.dp,
        )  # fmt: skip
        if key not in self._parts:
            self._parts[key] = step_parts(shape)
        return assemble(
            self._parts[key], self.constants, asynchronous=setup.asynchronous,
            before_v1=setup.version < V1_SINCE,
        )  # fmt: skip

    def predict(self, setup: Setup) -> tuple[dict[str, float], SimResult, StepTable]:
        """Return {metric: seconds or tokens per second}, the replay and the step table.

        Raises:
            ResultError: the replay could not serve the traffic.
        """
        table = self.table(setup)
        requests = staggered(setup, self.constants)
        settings = ReplaySettings(
            max_num_seqs=setup.max_num_seqs,
            max_num_batched_tokens=setup.max_num_batched_tokens,
            num_gpu_blocks=setup.num_gpu_blocks,
            block_size=setup.block_size,
            pipeline_stages=setup.pp,
            async_scheduling=setup.asynchronous,
        )
        result = simulate(requests, table, settings, setup.replicas)
        if result.status:
            raise ResultError(f"the replay ends with {result.status}")
        return client_metrics(setup, requests, result, self.constants), result, table


def staggered(setup: Setup, constants: StepConstants) -> Requests:
    """Return the traffic as the engine sees it: one front end hands a burst on one by one."""
    requests = setup.requests
    if requests.closed_loop_users is not None:
        return requests
    work = request_work_s(requests.input_tokens, constants)
    ready = through_one_server(requests.arrival_s, work)
    return replace(requests, arrival_s=ready - ready[0])


def client_metrics(
    setup: Setup, requests: Requests, result: SimResult, constants: StepConstants
) -> dict[str, float]:
    """Return the metrics that a client measures, from when it sends.

    In a closed loop the replay sends a user's next prompt in the instant of the last answer; a
    client needs a moment, in which the engine hands out the next iteration, so it waits for that.
    """
    latencies = per_request(requests, result)
    front = request_work_s(requests.input_tokens, constants)
    ttft = latencies["ttft"]
    if requests.closed_loop_users is None:
        first = setup.requests.arrival_s[0]
        ready = requests.arrival_s + front[0]
        ttft = ttft + ready - (setup.requests.arrival_s - first)
        added: FloatArray = np.zeros(len(front))
    else:
        step = result.makespan_s * setup.replicas / max(result.num_steps, 1)
        added = np.asarray(front + step, np.float64)
        added[: requests.closed_loop_users] = front[: requests.closed_loop_users]
        ttft = ttft + added
    if setup.chat:
        ttft = ttft + chat_latency_s(constants)
        added = added + chat_latency_s(constants)
    e2e = ttft + latencies["e2e"] - latencies["ttft"]
    out: dict[str, float] = {}
    for name, values in (("ttft", ttft), ("tpot", latencies["tpot"]), ("e2e", e2e)):
        used = values[~np.isnan(values)]
        if len(used):
            out[name] = float(used.mean())
            out[f"{name}_p50"] = float(np.percentile(used, 50))
            out[f"{name}_p99"] = float(np.percentile(used, 99))
    out["itl"] = gap_statistic(result.gaps, "mean")
    users = requests.closed_loop_users
    span = result.makespan_s
    if users is not None:
        span += float(added.sum()) / users
    out["output_tokens_per_s"] = float(requests.output_tokens.sum()) / span
    prompt = float(requests.input_tokens.sum())
    out["total_tokens_per_s"] = out["output_tokens_per_s"] + prompt / span
    return out


def inverse_direction(metric: str) -> bool:
    """Whether more is better: a throughput."""
    return metric.endswith("_per_s")


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values that are numbers."""
    return {name: value for name, value in values.items() if np.isfinite(value)}
