"""From axes to candidates: counts, ids, conditions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from sieve.catalog.engines import load_engine
from sieve.catalog.models import inline_model, load_model
from sieve.errors import CatalogError, NotYetError, SieveError, SpecError
from sieve.frames import columns_after
from sieve.grid import Grid, expand, require_prices
from sieve.spec import load_spec

Make = Callable[..., dict[str, Any]]
MOE, DENSE = "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-8B"


def grid_of(spec: dict[str, Any]) -> Grid:
    resolved = load_spec(spec)
    model = (
        load_model(resolved.model)
        if isinstance(resolved.model, str)
        else inline_model(resolved.model)
    )
    return expand(resolved, model, load_engine(resolved.engine))


@pytest.fixture
def with_axes(make_spec: Make) -> Callable[..., Grid]:
    def build(axes: dict[str, Any], **top: Any) -> Grid:
        return grid_of(make_spec({"grid": {"axes": {"weight_dtype": ["bf16"], **axes}}, **top}))

    return build


def column(grid: Grid, name: str) -> list[Any]:
    return grid.candidates[name].to_list()


def faults_of(call: Callable[[], object]) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        call()
    return {fault.path: fault.message for fault in caught.value.faults}


def test_the_reference_grid_has_11520_candidates(reference_spec: dict[str, Any]) -> None:
    grid = grid_of(reference_spec)
    # 6 GPUs x 4 TP x 3 PP x 4 replicas x 4 precisions x 2 cache formats x 5 budgets x 1
    assert len(grid.candidates) == 6 * 4 * 3 * 4 * 4 * 2 * 5 == 11_520
    assert grid.candidates["candidate_id"].n_unique() == 11_520
    assert grid.candidates.null_count().select("gpu", "tp", "num_gpus").row(0) == (0, 0, 0)
    assert set(columns_after(0)) <= set(grid.candidates.columns)
    gpus = grid.candidates["tp"] * grid.candidates["pp"] * grid.candidates["replicas"]
    assert (gpus == grid.candidates["num_gpus"]).all()


def test_the_id_is_the_documented_text(with_axes: Callable[..., Grid]) -> None:
    grid = with_axes(
        {
            "tp": [4], "pp": [1], "replicas": [2], "weight_dtype": ["fp8"],
            "max_num_seqs": [256], "max_num_batched_tokens": [8192],
        }
    )  # fmt: skip
    assert column(grid, "candidate_id") == ["h100-sxm-80gb.tp4.pp1.ep1.r2.fp8.kv-auto.s256.b8192"]


def test_options_are_a_suffix(with_axes: Callable[..., Grid]) -> None:
    grid = with_axes(
        {
            "tp": [1], "max_num_seqs": [8], "max_num_batched_tokens": [2048],
            "max_model_len": [4096], "block_size": [32], "gpu_memory_utilization": [0.85],
        }
    )  # fmt: skip
    (text,) = column(grid, "candidate_id")
    assert text.startswith("h100-sxm-80gb.tp1.pp1.ep1.r1.bf16.kv-auto.s8.b2048.")
    assert set(text.split(".b2048.")[1].replace("0.85", "0_85").split(".")) == {
        "block_size-32",
        "gpu_memory_utilization-0_85",
        "max_model_len-4096",
    }
    assert column(grid, "block_size") == [32]
    assert column(grid, "gpu_memory_utilization") == [0.85]
    assert column(grid, "max_model_len") == [4096]


def test_equal_axes_have_equal_ids_in_any_grid(with_axes: Callable[..., Grid]) -> None:
    fixed = {"max_num_seqs": [64, 256], "max_num_batched_tokens": [8192]}
    small = with_axes({"tp": [2], **fixed})
    large = with_axes(
        {**fixed, "kv_cache_dtype": ["fp8", "auto"], "pp": [2, 1], "tp": [4, 2, 1]},
        **{"fleet.gpus": ["L40S-48GB", "h100_sxm"]},
    )
    assert set(column(small, "candidate_id")) < set(column(large, "candidate_id"))
    assert len(large.candidates) == 2 * 3 * 2 * 2 * 2


def test_a_weight_precision_that_the_grid_leaves_open_is_the_checkpoints(make_spec: Make) -> None:
    frame = grid_of(make_spec({"grid": {"axes": {"tp": [1]}}})).candidates
    assert frame["weight_dtype"].to_list() == ["bf16"]
    assert frame["weight_bytes_per_param"].to_list() == [2.0]
    assert frame["load_bytes_per_param"].to_list() == [2.0]
    assert ".bf16." in frame["candidate_id"][0]


def test_other_axes_have_defaults(with_axes: Callable[..., Grid]) -> None:
    row = with_axes({"tp": [1]}).candidates.row(0, named=True)
    assert (row["pp"], row["ep"], row["replicas"], row["num_gpus"]) == (1, 1, 1, 1)
    assert row["kv_cache_dtype"] == "auto"
    # vLLM 0.33 on a device of 70 to 160 GiB
    assert (row["max_num_seqs"], row["max_num_batched_tokens"]) == (1024, 8192)
    assert (row["block_size"], row["gpu_memory_utilization"]) == (16, 0.92)


def test_defaults_depend_on_the_gpu(with_axes: Callable[..., Grid]) -> None:
    grid = with_axes({"tp": [1]}, **{"fleet.gpus": ["H100-SXM-80GB", "L40S-48GB"],
                                     "fleet.usd_per_gpu_hour": None})  # fmt: skip
    assert column(grid, "max_num_seqs") == [1024, 256]
    assert column(grid, "max_num_batched_tokens") == [8192, 2048]


def test_experts_open_the_ep_axis(with_axes: Callable[..., Grid]) -> None:
    ep = {"values": [1, 2], "when": {"model.moe": True}, "otherwise": 1}
    assert column(with_axes({"tp": [2], "ep": ep}, model=MOE), "ep") == [1, 2]
    assert column(with_axes({"tp": [2], "ep": ep}, model=DENSE), "ep") == [1]


def test_the_default_grid_counts(make_spec: Make) -> None:
    # gpu 1 x tp 4 x pp 2 x replicas 2 x weights 2 x cache 2 x seqs 5 x budgets 3, ep 4 if experts
    dense = 4 * 2 * 2 * 2 * 2 * 5 * 3
    assert len(grid_of(make_spec(grid="default", model=DENSE)).candidates) == dense
    assert len(grid_of(make_spec(grid="default", model=MOE)).candidates) == 4 * dense


def test_a_condition_on_another_axis(with_axes: Callable[..., Grid]) -> None:
    block = {"values": [16, 32], "when": {"kv_cache_dtype": ["fp8"]}, "otherwise": 64}
    grid = with_axes({"kv_cache_dtype": ["auto", "fp8"], "block_size": block})
    assert grid.candidates.select("kv_cache_dtype", "block_size").rows() == [
        ("auto", 64),
        ("fp8", 16),
        ("fp8", 32),
    ]


@pytest.mark.parametrize(
    ("other", "wanted"),
    [
        ({"kv_cache_dtype": ["bf16", "fp8"]}, {"kv_cache_dtype": "bf16"}),
        ({}, {"gpu": "h100_sxm"}),
    ],
)
def test_a_condition_takes_the_spellings_of_its_axis(
    with_axes: Callable[..., Grid], other: dict[str, Any], wanted: dict[str, Any]
) -> None:
    block = {"values": [16, 32], "when": wanted, "otherwise": 64}
    assert 32 in column(with_axes({**other, "block_size": block}), "block_size")


def test_a_condition_on_a_conditional_axis_sees_its_value(with_axes: Callable[..., Grid]) -> None:
    tp = {"values": [1, 2], "when": {"kv_cache_dtype": "fp8"}, "otherwise": 4}
    block = {"values": [16, 32], "when": {"tp": 4}, "otherwise": 64}
    grid = with_axes({"kv_cache_dtype": ["auto", "fp8"], "tp": tp, "block_size": block})
    assert sorted(grid.candidates.select("kv_cache_dtype", "tp", "block_size").rows()) == [
        ("auto", 4, 16),
        ("auto", 4, 32),
        ("fp8", 1, 64),
        ("fp8", 2, 64),
    ]


def test_a_range_ends_at_the_fleets_limit(with_axes: Callable[..., Grid]) -> None:
    axis = {"replicas": {"range": [1, "max_gpus"]}}
    assert column(with_axes(axis, **{"fleet.max_gpus": 5}), "replicas") == [1, 2, 3, 4, 5]
    assert column(with_axes({"replicas": {"range": [2, 3]}}), "replicas") == [2, 3]


@pytest.mark.parametrize("ends", [[3, 1], [0, 4], [1, 20_000], [1, "many"]])
def test_a_range_that_is_none(with_axes: Callable[..., Grid], ends: list[Any]) -> None:
    assert set(faults_of(lambda: with_axes({"replicas": {"range": ends}}))) == {
        "grid.axes.replicas"
    }


def test_a_precision_written_out(with_axes: Callable[..., Grid]) -> None:
    given = [
        "int8",
        {"name": "w4g", "bytes_per_param": 0.6},
        {"name": "w8", "bytes_per_param": 1, "load_bytes_per_param": 2},
    ]
    frame = with_axes({"weight_dtype": given}).candidates
    assert frame.select(
        "weight_dtype", "weight_bytes_per_param", "load_bytes_per_param"
    ).rows() == [
        ("int8", 1.0, 2.0),  # quantised while loading from two bytes
        ("w4g", 0.6, 0.6),
        ("w8", 1.0, 2.0),
    ]


@pytest.mark.parametrize(
    ("name", "resident", "loading"),
    [
        ("bf16", 2, 2), ("fp16", 2, 2), ("fp8", 1, 1), ("int8", 1, 2),
        ("int4", 0.5 + (2 + 0.5) / 128, 0.5 + (2 + 0.5) / 128),  # a scale and a zero for every 128
        ("mxfp4", 0.5 + 1 / 32, 0.5 + 1 / 32), ("nvfp4", 0.5 + 1 / 16, 0.5 + 1 / 16),
    ],
)  # fmt: skip
def test_bytes_of_the_named_precisions(
    with_axes: Callable[..., Grid], name: str, resident: float, loading: float
) -> None:
    row = with_axes({"weight_dtype": [name]}).candidates.row(0, named=True)
    assert (row["weight_bytes_per_param"], row["load_bytes_per_param"]) == (resident, loading)


@pytest.mark.parametrize(
    "precision",
    [
        "fp9", "FP8", 8, None, {"name": "x"}, {"name": "x", "bytes_per_param": 0},
        {"name": "x", "bytes_per_param": -1}, {"name": "x", "bytes_per_param": math.nan},
        {"name": "x", "bytes_per_param": True}, {"name": "x/y", "bytes_per_param": 1},
        {"name": "x\ny", "bytes_per_param": 1}, {"name": "x\n", "bytes_per_param": 1},
        {"name": "x", "bytes_per_param": 1, "bits": 4},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_precision(with_axes: Callable[..., Grid], precision: Any) -> None:
    faults = faults_of(lambda: with_axes({"weight_dtype": [precision]}))
    assert set(faults) == {"grid.axes.weight_dtype"}


@pytest.mark.parametrize(
    ("given", "canonical", "size"),
    [
        ("auto", "auto", 2.0),
        ("bf16", "bfloat16", 2.0),
        ("bfloat16", "bfloat16", 2.0),
        ("float16", "float16", 2.0),
        ("fp8", "fp8", 1.0),
        ("fp8_e4m3", "fp8_e4m3", 1.0),
        ("fp8_e5m2", "fp8_e5m2", 1.0),
    ],
)
def test_cache_formats_have_vllms_spelling(
    with_axes: Callable[..., Grid], given: str, canonical: str, size: float
) -> None:
    row = with_axes({"kv_cache_dtype": [given]}).candidates.row(0, named=True)
    assert (row["kv_cache_dtype"], row["kv_bytes_per_element"]) == (canonical, size)
    assert f".kv-{canonical}." in row["candidate_id"]


@pytest.mark.parametrize("later", ["fp8_ds_mla", "nvfp4", "int8_per_token_head"])
def test_cache_formats_of_later_versions(with_axes: Callable[..., Grid], later: str) -> None:
    with pytest.raises(NotYetError, match=later):
        with_axes({"kv_cache_dtype": [later]})


def test_data_parallel_ranks_are_an_option_of_the_id(with_axes: Callable[..., Grid]) -> None:
    grid = with_axes({"tp": [2], "data_parallel_size": [1, 4], "replicas": [3]})
    ends = [text.split(".b8192.")[1] for text in column(grid, "candidate_id")]
    assert ends == ["data_parallel_size-1", "data_parallel_size-4"]
    assert column(grid, "num_gpus") == [2 * 3, 2 * 4 * 3]
    plain = with_axes({"tp": [2]})
    assert column(plain, "data_parallel_size") == [1]
    assert "data_parallel" not in column(plain, "candidate_id")[0]


def test_every_fault_of_the_axes_at_once(with_axes: Callable[..., Grid]) -> None:
    axes = {
        "tpp": [1],
        "tp": [0, 2, 2],
        "pp": [1.5],
        "replicas": [True],
        "weight_dtype": ["fp9"],
        "kv_cache_dtype": ["bf16", "bfloat16"],
        "gpu_memory_utilization": [1.5],
        "max_num_seqs": [None],
        "block_size": {"values": [16], "when": {"colour": "red"}},
    }
    faults = faults_of(lambda: with_axes(axes))
    assert set(faults) == {
        "grid.axes.tpp", "grid.axes.tp", "grid.axes.pp", "grid.axes.replicas",
        "grid.axes.weight_dtype", "grid.axes.kv_cache_dtype", "grid.axes.gpu_memory_utilization",
        "grid.axes.max_num_seqs", "grid.axes.block_size.when.colour",
    }  # fmt: skip
    assert "did you mean 'tp'?" in faults["grid.axes.tpp"]
    assert "twice" in faults["grid.axes.kv_cache_dtype"]


def test_fleet_gpus_replace_the_gpu_axis(with_axes: Callable[..., Grid], make_spec: Make) -> None:
    assert set(column(with_axes({"gpu": ["L40S-48GB"], "tp": [1]}), "gpu")) == {"H100-SXM-80GB"}
    axes = {"gpu": ["L40S-48GB"], "tp": [1], "weight_dtype": ["bf16"]}
    assert set(column(grid_of(make_spec({"grid": {"axes": axes}, "fleet": {}})), "gpu")) == {
        "L40S-48GB"
    }


@pytest.mark.parametrize("alias", ["h100-sxm", "h100_sxm", "H100-80GB-SXM", "H100-SXM-80GB"])
def test_aliases_of_a_gpu_make_one_id(with_axes: Callable[..., Grid], alias: str) -> None:
    prices = {alias: 2.5}
    grid = with_axes({"tp": [1]}, **{"fleet.gpus": [alias], "fleet.usd_per_gpu_hour": prices})
    assert column(grid, "candidate_id")[0].startswith("h100-sxm-80gb.")
    assert grid.gpus["H100-SXM-80GB"].usd_per_gpu_hour == 2.5
    assert grid.gpus["H100-SXM-80GB"].price_note == ""


def test_gpus_that_cannot_be(with_axes: Callable[..., Grid]) -> None:
    with pytest.raises(CatalogError, match="H100-SXM-80GB"):
        with_axes({"tp": [1]}, **{"fleet.gpus": ["H1000-SXM"], "fleet.usd_per_gpu_hour": None})
    twice = {"fleet.gpus": ["h100-sxm", "H100-SXM-80GB"]}
    assert "twice" in faults_of(lambda: with_axes({"tp": [1]}, **twice))["fleet.gpus"]
    prices = {"fleet.usd_per_gpu_hour": {"A100": 1}}
    assert set(faults_of(lambda: with_axes({"tp": [1]}, **prices))) == {
        "fleet.usd_per_gpu_hour.A100"
    }


@pytest.mark.parametrize(
    ("axes", "top"),
    [
        ({"weight_dtype": ["fp8", {"name": "fp8", "bytes_per_param": 1.5}]}, {}),
        (
            {"tp": [1]},
            {
                "fleet.gpus": [
                    {"name": "My GPU", "like": "H100-SXM-80GB"},
                    {"name": "My-GPU", "like": "H100-SXM-80GB"},
                ],
                "fleet.usd_per_gpu_hour": None,
            },
        ),
    ],
    ids=["precision", "gpu"],
)
def test_two_things_with_one_id_are_refused(
    with_axes: Callable[..., Grid], axes: dict[str, Any], top: dict[str, Any]
) -> None:
    with pytest.raises(SieveError):
        with_axes(axes, **top)


def test_a_hostile_gpu_name_makes_a_harmless_id(with_axes: Callable[..., Grid]) -> None:
    hostile = {"name": "../../a;rm -rf ~\n$(x)", "like": "H100-SXM-80GB"}
    try:
        grid = with_axes({"tp": [1]}, **{"fleet.gpus": [hostile], "fleet.usd_per_gpu_hour": None})
    except SieveError:
        return
    (text,) = column(grid, "candidate_id")
    assert not set(text) & set("/\\\n\r\0 ;$()'\"`")


def test_too_many_candidates_are_not_enumerated(with_axes: Callable[..., Grid]) -> None:
    axes = {"tp": list(range(1, 5000)), "pp": list(range(1, 5000))}
    with pytest.raises(NotYetError, match="24,990,001"):
        with_axes(axes)


def test_a_gpu_without_a_price_is_named(with_axes: Callable[..., Grid]) -> None:
    facts = {
        "name": "Bespoke", "memory_gb": 80, "mem_bw_gbs": 2000, "bf16_dense_tflops": 300,
        "scale_up_gbs_unidirectional": 100,
    }  # fmt: skip
    grid = with_axes({"tp": [1]}, **{"fleet.gpus": [facts], "fleet.usd_per_gpu_hour": None})
    with pytest.raises(SieveError, match="Bespoke"):
        require_prices(grid.gpus)
    require_prices(with_axes({"tp": [1]}).gpus)
    assert with_axes({"tp": [1]}).gpus["H100-SXM-80GB"].usd_per_gpu_hour == 3.6


def test_context_parallelism_is_an_option_of_the_id(with_axes: Callable[..., Grid]) -> None:
    grid = with_axes({"tp": [8], "decode_context_parallel_size": [1, 2], "block_size": [16]})
    ends = [text.split(".b8192.")[1] for text in column(grid, "candidate_id")]
    assert ends == [
        "block_size-16.decode_context_parallel_size-1",
        "block_size-16.decode_context_parallel_size-2",
    ]
    # Requests draw blocks whose tokens lie on all ranks that share them out.
    assert column(grid, "block_size") == [16, 32]
    assert column(with_axes({"tp": [1]}), "decode_context_parallel_size") == [1] * 1


@pytest.mark.parametrize("option", ["decode_context_parallel_size", "data_parallel_size"])
def test_the_plain_rules_know_no_such_ranks(reference_spec: dict[str, Any], option: str) -> None:
    axes = {"gpu": ["H100-SXM-80GB"], "tp": [2], option: [2]}
    facts = {"name": "m", "params": 27e9, "width": 5120, "layers": 64, "heads": 40}
    grid = {"axes": axes, "engine": "reference", "model": facts}
    faults = faults_of(lambda: grid_of({**reference_spec, "grid": grid}))
    assert set(faults) == {f"grid.axes.{option}"}
    assert "no such option" in faults[f"grid.axes.{option}"]
