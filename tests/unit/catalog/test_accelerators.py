"""Names of accelerators, their units, and inline facts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sieve.catalog.accelerators import gpu_slug, inline_gpu, list_gpus, load_gpu
from sieve.errors import CatalogError


def test_h100_in_bytes_and_seconds() -> None:
    gpu = load_gpu("H100-SXM-80GB")
    assert gpu.memory_bytes / 2**30 == pytest.approx(79.2, abs=0.05)
    assert gpu.mem_bw_bytes_per_s == 3.35e12
    assert gpu.flops_per_s == {"bf16": 9.89e14, "fp8": 1.979e15, "int8": 1.979e15}
    assert gpu.link_bytes_per_s == 4.5e11
    assert gpu.pcie_bytes_per_s == 6.4e10
    assert gpu.scale_up_gpus == 8
    assert gpu.compute_capability == 9.0
    assert gpu.usd_per_gpu_hour == pytest.approx((2.58 + 6.16) / 2)
    assert gpu.price_note.startswith("middle of 2.58-6.16 USD/h, ")
    assert gpu.price_note.endswith(", assumed")
    assert "2026-11-09" in gpu.price_note
    assert gpu.assumed == ()


def test_l40s_has_no_fast_link() -> None:
    gpu = load_gpu("l40s")
    assert gpu.link_bytes_per_s == gpu.pcie_bytes_per_s == 3.2e10
    assert gpu.scale_up_gpus == 1
    assert "fp8" in gpu.flops_per_s
    assert "fp8" not in load_gpu("A100-SXM-80GB").flops_per_s


def test_memory_falls_back_with_a_note() -> None:
    board = load_gpu("B300-SXM-288GB")
    assert board.memory_bytes == 275040 * 2**20
    assert any("board total" in note for note in board.assumed)
    nominal = load_gpu("MI300X-192GB")
    assert nominal.memory_bytes == 192e9
    assert any("nominal 192 GB" in note for note in nominal.assumed)


def test_catalogue_is_whole() -> None:
    gpus = list_gpus()
    assert len(gpus) == 32
    assert len({gpu_slug(gpu.name) for gpu in gpus}) == 32
    for gpu in gpus:
        assert load_gpu(gpu.name) == gpu
        assert gpu.memory_bytes > 0
        assert gpu.mem_bw_bytes_per_s > 0
        assert (gpu.usd_per_gpu_hour is None) == (gpu.price_note == "")
    systems = {gpu.name: gpu.kernel_system for gpu in gpus if gpu.kernel_system}
    assert sorted(systems.values()) == ["a100_sxm", "b200_sxm", "h100_sxm", "h200_sxm", "l40s"]
    assert load_gpu("GB300-NVL72").usd_per_gpu_hour is None


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("h100-sxm", "H100-SXM-80GB"),
        ("h100_sxm", "H100-SXM-80GB"),
        ("H100-80GB-SXM", "H100-SXM-80GB"),
        ("H100 SXM5 80GB", "H100-SXM-80GB"),
        ("h100", "H100-SXM-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"),
        ("a100-80", "A100-SXM-80GB"),
        ("a100_sxm", "A100-SXM-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM-40GB"),
        ("l40s", "L40S-48GB"),
        ("NVIDIA L40S", "L40S-48GB"),
        ("L4", "L4-24GB"),
        ("Tesla L4", "L4-24GB"),
        ("h200_sxm", "H200-SXM-141GB"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA H200 NVL", "H200-NVL-141GB"),
        ("b200", "B200-SXM-180GB"),
        ("b200_sxm", "B200-SXM-180GB"),
        ("NVIDIA B200", "B200-SXM-180GB"),
        ("gb200", "GB200-NVL72"),
        ("mi300x", "MI300X-192GB"),
        ("AMD Instinct MI300X", "MI300X-192GB"),
        ("NVIDIA GeForce RTX 4090", "RTX4090-24GB"),
        ("NVIDIA GB10", "DGX-Spark-GB10"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert load_gpu(alias).name == name


def test_open_names_are_noted() -> None:
    assert any("'h100' is read as H100-SXM-80GB" in note for note in load_gpu("h100").assumed)
    assert any("A100-SXM-40GB" in note for note in load_gpu("a100").assumed)
    assert load_gpu("h100-sxm").assumed == ()


@pytest.mark.parametrize(
    "name",
    ["A100-PCIe-80GB", "NVIDIA A100-PCIE-40GB", "a10g", "h1000", "sxm", "80GB", "", "x" * 999],
)
def test_other_parts_are_unknown(name: str) -> None:
    with pytest.raises(CatalogError, match=r"unknown gpu .*nearest: [^,]+, [^,]+, [^,]+\."):
        load_gpu(name)


def test_slug() -> None:
    assert gpu_slug("H100-SXM-80GB") == "h100-sxm-80gb"
    assert gpu_slug("My card/v1.5 µ") == "my-card-v1.5--"


def test_inline_with_like() -> None:
    gpu = inline_gpu({"name": "L40S", "like": "l40s", "memory_gb": 45})
    assert gpu.name == "L40S"
    assert gpu.like == "L40S-48GB"
    assert gpu.memory_bytes == 45e9
    assert gpu.mem_bw_bytes_per_s == 864e9
    assert gpu.kernel_system == "l40s"
    assert "mem_bw_gbs from L40S-48GB" in gpu.assumed
    assert "usd_per_gpu_hour from L40S-48GB" in gpu.assumed
    assert not any(note.startswith("memory_gb") for note in gpu.assumed)


@pytest.mark.parametrize("key", ["mem_bw_gbs", "bf16_dense_tflops", "fp8_dense_tflops"])
def test_inline_with_other_rates_has_no_kernel_times(key: str) -> None:
    gpu = inline_gpu({"name": "x", "like": "H100-SXM-80GB", key: 700, "usd_per_gpu_hour": 2})
    assert gpu.kernel_system == ""
    assert gpu.usd_per_gpu_hour == 2
    assert gpu.price_note == ""


def test_inline_alone() -> None:
    facts = {"name": "new", "memory_gb": 96, "mem_bw_gbs": 2000, "bf16_dense_tflops": 500}
    gpu = inline_gpu(facts)
    assert gpu.flops_per_s == {"bf16": 5e14}
    assert gpu.usd_per_gpu_hour is None
    assert gpu.scale_up_gpus == 1
    linked = inline_gpu({**facts, "scale_up_gbs_unidirectional": 450})
    assert linked.link_bytes_per_s == 4.5e11
    with pytest.raises(CatalogError, match="missing keys mem_bw_gbs, bf16_dense_tflops"):
        inline_gpu({"name": "new", "memory_gb": 80})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cores": 1}, "unknown key cores"),
        ({"name": None}, "name is None"),
        ({"memory_gb": 0}, "memory_gb is 0"),
        ({"memory_gb": -1}, "memory_gb is -1"),
        ({"mem_bw_gbs": math.nan}, "mem_bw_gbs is nan"),
        ({"mem_bw_gbs": True}, "mem_bw_gbs is True"),
        ({"usd_per_gpu_hour": "free"}, "usd_per_gpu_hour is 'free'"),
        ({"like": "h1000"}, "unknown gpu 'h1000'"),
        ({"like": 5}, "like is 5"),
    ],
)
def test_bad_inline_facts(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CatalogError, match=words):
        inline_gpu({"name": "x", "like": "H100-SXM-80GB", **changes})
