"""Every target, parsed back, starts the candidate that was evaluated, whatever it is called."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.errors import ExportError
from sieve.export import (
    compose,
    dynamo,
    kserve,
    kserve_classic,
    kubernetes,
    leader_worker_set,
    llm_d,
    options,
    ray_serve,
)
from sieve.export.deployment import Deployment, check, dns_name, read_script
from sieve.export.schemas import kubernetes as kubernetes_schema
from sieve.export.vllm_serve import parse_command, serve_script
from sieve.export.yaml_text import validate

TARGETS = (
    compose, kubernetes, leader_worker_set, kserve, kserve_classic, llm_d, ray_serve, dynamo,
)  # fmt: skip
ROW: dict[str, Any] = {
    "candidate_id": "h100-sxm-80gb.tp4.pp1.ep1.r2.bf16.kv-fp8.s256.b8192", "gpu": "H100-SXM-80GB",
    "tp": 4, "pp": 1, "ep": 1, "replicas": 2, "weight_dtype": "bf16", "kv_cache_dtype": "fp8",
    "max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_model_len": 4096,
    "gpu_memory_utilization": 0.92, "block_size": 16, "enable_chunked_prefill": True,
    "enable_prefix_caching": True, "async_scheduling": True, "long_prefill_token_threshold": 0,
    "decode_context_parallel_size": 1, "data_parallel_size": 1,
}  # fmt: skip
KINDS: dict[str, tuple[dict[str, Any], int]] = {
    "dense": ({}, 1),
    "experts spread, pipeline in a node": ({"tp": 2, "pp": 2, "ep": 2}, 1),
    "two nodes": ({"tp": 8, "pp": 2, "ep": 8, "replicas": 1}, 2),
    "a stage over nodes": ({"tp": 16, "pp": 1, "replicas": 1}, 2),
    "fp8 weights, fp8 cache": ({"weight_dtype": "fp8", "kv_cache_dtype": "fp8_e5m2"}, 1),
    "checkpoint of its own": ({"weight_dtype": "int4", "kv_cache_dtype": "auto"}, 1),
    "switches off": (
        {"enable_chunked_prefill": False, "enable_prefix_caching": False,
         "async_scheduling": False}, 1,
    ),
    "context parallel": ({"decode_context_parallel_size": 2, "block_size": 32}, 1),
    "data parallel": ({"tp": 2, "data_parallel_size": 4, "ep": 8, "replicas": 1}, 1),
    "hybrid": ({"block_size": 544, "long_prefill_token_threshold": 512}, 1),
    "own memory share": ({"gpu_memory_utilization": 0.8537, "max_model_len": 131072}, 1),
    "another card": ({"gpu": "MI300X-192GB", "replicas": 7, "tp": 1}, 1),
}  # fmt: skip
HOSTILE = [
    "a b/c", "x'; touch pwned; '", "$(touch pwned)", "`touch pwned`", "a\nb: c", 'q"q', "é/ü",
    "- x: y", "*anchor", "!!python/object:os.system", "$(LWS_LEADER_ADDRESS)", "${HOME}", "$$x",
    "yes", "null", "1e3", "#x", "{a: b}", "{{ .Values.x }}", "a\u2028b", "\ufeffx", "a\tb", "%x",
]  # fmt: skip


def deployment(kind: str = "dense", model: str | None = "org/model", **row: Any) -> Deployment:
    changes, nodes = KINDS[kind]
    return Deployment({**ROW, **changes, **row}, model, "bf16", "vllm", "0.33", nodes, "run-1")


def args_equal_the_candidate(args: list[str], wanted: Deployment, *, model: bool = True) -> None:
    """Parse with the flags' own reader and compare column by column."""
    back = parse_command(args)
    row = wanted.row
    for name in (
        "tp", "pp", "ep", "kv_cache_dtype", "max_num_seqs", "max_num_batched_tokens", "block_size",
        "max_model_len", "gpu_memory_utilization", "enable_chunked_prefill", "async_scheduling",
        "enable_prefix_caching", "long_prefill_token_threshold", "decode_context_parallel_size",
        "data_parallel_size",
    ):  # fmt: skip
        assert back[name] == row[name], name
    if row["weight_dtype"] in {"bf16", "fp8"}:
        assert back["weight_dtype"] == row["weight_dtype"]
        assert not model or back["model"] == wanted.model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.FILE)
def test_parsed_back_it_is_the_candidate(target: ModuleType, kind: str) -> None:
    wanted = deployment(kind)
    if not target.fits(wanted):
        if kind == "data parallel" and target is ray_serve:
            return
        only_one_node = target is kubernetes or (target is kserve_classic and kind != "two nodes")
        assert wanted.nodes > 1 if only_one_node else target is leader_worker_set
        return
    text = target.write(wanted)
    started = target.read(text)
    args_equal_the_candidate(started.args, wanted, model=started.names_model)
    ranks = wanted.row["tp"] * wanted.row["pp"] * wanted.row["data_parallel_size"]
    assert started.gpus * (started.nodes or 1) == ranks
    assert started.nodes in {None, wanted.nodes}
    assert started.replicas in {None, wanted.row["replicas"]}
    check(wanted, target.FILE, text, target.read)


@pytest.mark.parametrize("kind", KINDS)
def test_the_script_and_keyword_arguments_are_the_candidate_too(kind: str) -> None:
    wanted = deployment(kind)
    script = serve_script(wanted.row, "org/model", "bf16", "vllm", nodes=wanted.nodes)
    check(wanted, "serve.sh", script, read_script)
    keywords = options.keywords_of(wanted.flags)
    assert options.flags_of(json.loads(json.dumps(keywords))) == wanted.flags
    assert keywords["enable_prefix_caching"] is wanted.row["enable_prefix_caching"]


@pytest.mark.parametrize("model", HOSTILE)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.FILE)
def test_a_hostile_model_stays_one_value(target: ModuleType, model: str) -> None:
    wanted = deployment("two nodes" if target is leader_worker_set else "dense", model)
    if not target.fits(wanted):
        assert "{{" in model
        assert target in {kserve, llm_d}
        return
    text = target.write(wanted)
    assert target.read(text).args[2] == model
    check(wanted, target.FILE, text, target.read)
    assert all(isinstance(part, dict) for part in yaml.safe_load_all(text))


@given(model=st.text(min_size=1, max_size=30).filter(lambda t: "\0" not in t and "{{" not in t))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_any_model_text_survives_any_target(model: str) -> None:
    for target in (kubernetes, compose, ray_serve, dynamo, kserve, llm_d):
        assert target.read(target.write(deployment(model=model))).args[2] == model


def test_kubernetes_expands_nothing_of_ours() -> None:
    """`$$` is how a container's arguments say `$`; `$(X)` would be replaced by a variable."""
    for target, find in (
        (kubernetes, lambda d: d["spec"]["template"]["spec"]["containers"][0]["args"][0]),
        (dynamo, lambda d:
            d["spec"]["services"]["VllmWorker"]["extraPodSpec"]["mainContainer"]["args"][1]),
    ):  # fmt: skip
        text = target.write(deployment(model="$(SECRET)/$x"))
        assert find(next(yaml.safe_load_all(text))) == "$$(SECRET)/$$x"
    services = yaml.safe_load(compose.write(deployment(model="${SECRET}")))["services"]
    assert services["replica-0"]["command"][0] == "$${SECRET}"


def test_a_deployment_by_hand() -> None:
    """Replicas, GPUs, probes and names as Kubernetes wants them, compared with what we know."""
    pods, service = yaml.safe_load_all(kubernetes.write(deployment()))
    assert (pods["apiVersion"], pods["kind"]) == ("apps/v1", "Deployment")
    assert pods["spec"]["replicas"] == 2
    (engine,) = pods["spec"]["template"]["spec"]["containers"]
    assert engine["image"] == "vllm/vllm-openai:v0.33.0"
    assert engine["command"] == ["vllm", "serve"]
    assert engine["resources"] == {"limits": {"nvidia.com/gpu": "4"}}
    assert engine["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    assert pods["spec"]["template"]["spec"]["volumes"][0]["emptyDir"] == {"medium": "Memory"}
    labels = pods["spec"]["template"]["metadata"]["labels"]
    assert pods["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    assert (service["kind"], service["spec"]["ports"][0]["targetPort"]) == ("Service", 8000)


def test_groups_over_nodes_by_hand() -> None:
    """Two nodes of eight GPUs: a pod a node, ranks and the leader's address from the group."""
    groups, service = yaml.safe_load_all(leader_worker_set.write(deployment("two nodes")))
    template = groups["spec"]["leaderWorkerTemplate"]
    assert (groups["spec"]["replicas"], template["size"]) == (1, 2)
    for role, headless in (("leaderTemplate", False), ("workerTemplate", True)):
        (engine,) = template[role]["spec"]["containers"]
        assert engine["resources"]["limits"]["nvidia.com/gpu"] == "8"
        args = engine["args"]
        assert args[args.index("--node-rank") + 1] == "$(LWS_WORKER_INDEX)"
        assert args[args.index("--master-addr") + 1] == "$(LWS_LEADER_ADDRESS)"
        assert ("--headless" in args) is headless
    assert service["spec"]["selector"]["sieve-role"] == "leader"


def test_kserve_ray_and_dynamo_by_hand() -> None:
    service = yaml.safe_load(kserve.write(deployment("experts spread, pipeline in a node")))
    assert service["spec"]["parallelism"] == {"tensor": 2, "pipeline": 2, "expert": True}
    assert service["spec"]["model"] == {"uri": "hf://org/model", "name": "org/model"}
    classic = yaml.safe_load(kserve_classic.write(deployment("two nodes")))["spec"]["predictor"]
    assert classic["workerSpec"]["tensorParallelSize"] == 8
    assert classic["workerSpec"]["pipelineParallelSize"] == 2
    assert "--tensor-parallel-size" not in classic["model"]["args"]
    (app,) = yaml.safe_load(ray_serve.write(deployment("switches off")))["applications"]
    (one,) = app["args"]["llm_configs"]
    assert one["accelerator_type"] == "H100"
    assert one["engine_kwargs"]["tensor_parallel_size"] == 4
    assert one["engine_kwargs"]["async_scheduling"] is False
    assert one["deployment_config"]["autoscaling_config"] == {"min_replicas": 2, "max_replicas": 2}
    assert one["placement_group_config"]["bundles"] == [{"CPU": 1, "GPU": 1}] * 4
    graph = yaml.safe_load(dynamo.write(deployment("two nodes")))["spec"]["services"]
    assert graph["VllmWorker"]["multinode"] == {"nodeCount": 2}
    assert graph["VllmWorker"]["resources"] == {"limits": {"gpu": "8"}}
    values = yaml.safe_load(llm_d.write(deployment()))
    assert values["decode"]["parallelism"] == {"tensor": 4, "data": 1, "dataLocal": 1, "workers": 1}


def test_replicas_of_one_host_share_no_gpu() -> None:
    """Three of four GPUs' engines would need 12; a host of eight holds two."""
    services = yaml.safe_load(compose.write(deployment(replicas=3), 8))["services"]
    ids = [
        number
        for service in services.values()
        for number in service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
    ]
    assert ids == [str(i) for i in range(8)]
    assert [s["ports"] for s in services.values()] == [["8000:8000"], ["8001:8000"]]


@pytest.mark.parametrize("text", ["A.b_C/d", "x" * 300, "", "-", "é", "a..b", "1.tp2"])
def test_names_are_dns_labels(text: str) -> None:
    name = dns_name(text)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert len(name) <= 50


def test_names_that_look_alike_stay_apart() -> None:
    assert len({dns_name(text) for text in ("a.b", "a-b", "A.B", "a_b", "a.b.")}) == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("'8192'", "'4096'"),
        lambda text: text.replace("--enable-prefix-caching", "--no-enable-prefix-caching"),
        lambda text: text.replace("replicas: 2", "replicas: 3"),
        lambda text: text.replace("nvidia.com/gpu: '4'", "nvidia.com/gpu: '2'"),
        lambda text: text.replace("org/model", "org/other"),
        lambda text: text.replace("        - --kv-cache-dtype\n        - fp8\n", ""),
    ],
)
def test_a_manifest_that_starts_something_else_is_refused(change: Any) -> None:
    wanted = deployment()
    text = kubernetes.write(wanted)
    assert change(text) != text
    with pytest.raises(ExportError, match="would not start what was evaluated"):
        check(wanted, kubernetes.FILE, change(text), kubernetes.read)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "replicas"), 0),
        (("spec", "replica"), 2),
        (("metadata", "name"), "Has.Dots"),
        (("apiVersion",), "apps/v2"),
        (("spec", "template", "spec", "containers", 0, "resources", "limits"), {"gpu": "1"}),
    ],
)
def test_schemas_refuse_what_a_cluster_would_drop(path: tuple[Any, ...], value: Any) -> None:
    document = next(yaml.safe_load_all(kubernetes.write(deployment())))
    validate(document, kubernetes_schema.KubernetesDeployment)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ExportError, match="KubernetesDeployment"):
        validate(document, kubernetes_schema.KubernetesDeployment)


def test_a_checkpoint_that_must_be_named_is_never_invented() -> None:
    for wanted in (deployment("checkpoint of its own"), deployment(model=None)):
        for target in (kubernetes, kserve, llm_d, ray_serve, dynamo, kserve_classic):
            text = target.write(wanted)
            assert "REPLACE_ME_CHECKPOINT" in text
            assert "hf://" not in text
        assert "${CHECKPOINT:?}" in compose.write(wanted)


def test_compose_runs_what_the_script_runs(tmp_path: Path) -> None:
    """The words of both, after the shell and after compose's own rule, are the same."""
    wanted = deployment(model="a'b $HOME/c")
    fake = tmp_path / "vllm"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > words\n', encoding="utf-8")
    fake.chmod(0o755)
    script = tmp_path / "serve.sh"
    script.write_text(serve_script(wanted.row, "a'b $HOME/c", "bf16", "vllm"), encoding="utf-8")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["bash", script], cwd=tmp_path, env=env, check=True, timeout=20)
    words = (tmp_path / "words").read_text(encoding="utf-8").splitlines()
    assert ["vllm", *words] == compose.read(compose.write(wanted)).args[:-2]
    assert shlex.join(words).startswith("serve 'a'")
