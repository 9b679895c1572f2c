"""What a way to be parallel costs: the published formulas by hand, and `hpccoll layout`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpccoll.cli import main
from hpccoll.errors import UsageError
from hpccoll.parallel.gpus import GPUS, machine_with_gpus
from hpccoll.parallel.models import MODELS, Model, model_of
from hpccoll.parallel.price import (
    Choice,
    activation_bytes,
    message_s,
    neighbours,
    price_choice,
    shared,
    state_bytes,
    uses_of,
)
from hpccoll.plans.links import NDR, NVLINK4, Links
from hpccoll.plans.machines import MACHINES, machine_of
from hpccoll.topology.layout import Layout

GPT3 = MODELS["gpt3-175b"]
CHOICE = Choice(tensor=8, pipeline=8, data=1, batch=64)
LINKS = machine_of("dgx-h100").links


def price(choice: Choice, text: str = "8x8", model: Model = GPT3, links: Links = LINKS) -> Any:
    return price_choice(choice, model, Layout.parse(text), links, 5e14)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt-1.7b", 1.7), ("gpt-7.5b", 7.5), ("gpt-39b", 39.1), ("gpt-76b", 76.1), ("gpt-145b", 145.6),
        ("gpt-530b", 529.6), ("gpt-1t", 1008.0), ("gpt3-175b", 174.6), ("gpt2-1.5b", 1.56),
    ],
)  # fmt: skip
def test_parameters_are_the_published_ones(name: str, billions: float) -> None:
    assert model_of(name).parameters / 1e9 == pytest.approx(billions, abs=0.06)
    assert set(MODELS) >= {name}


def test_operations_are_the_published_formula() -> None:
    """96 B s l h^2 (1 + s/(6 h) + V/(16 l h)) where everything is recomputed, 72 and 12 where nothing is."""
    batch, s, h, layers, v = 1536, GPT3.sequence, GPT3.hidden, GPT3.layers, GPT3.vocabulary
    for recompute, factor, of_logits in (("full", 96, 16), ("none", 72, 12)):
        published = factor * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (of_logits * layers * h))
        assert GPT3.operations(batch, recompute) == pytest.approx(published)
    attention = 4 * batch * s * s * h * layers
    assert GPT3.operations(batch, "selective") - GPT3.operations(batch, "none") == pytest.approx(attention)


def test_activations_are_the_published_table() -> None:
    """K. et al., table 2, for GPT-3: 5 a s/h is 80; s b h is 25.2 million."""
    sbh = GPT3.sequence * GPT3.hidden
    of_attention = 5 * GPT3.heads * GPT3.sequence / GPT3.hidden
    assert of_attention == 80

    def kept(tensor: int, sequence: bool, recompute: str) -> float:
        return GPT3.activation_bytes(1, tensor, sequence=sequence, recompute=recompute) / sbh

    assert kept(1, False, "none") == pytest.approx(34 + 80)
    assert kept(8, False, "none") == pytest.approx(10 + 24 / 8 + 80 / 8)
    assert kept(8, True, "none") == pytest.approx((34 + 80) / 8)
    assert kept(8, True, "selective") == pytest.approx(34 / 8)
    assert kept(8, False, "full") == pytest.approx(2)


def test_memory_of_the_first_stage() -> None:
    parameters = (GPT3.parameters - GPT3.embedding_parameters) / 64 + GPT3.embedding_parameters / 8
    assert state_bytes(CHOICE, GPT3) == pytest.approx(16 * parameters)
    assert state_bytes(replace(CHOICE, data=4, sharded=True), GPT3) == pytest.approx(7 * parameters)
    assert state_bytes(replace(CHOICE, data=4, sharded=False), GPT3) == pytest.approx(16 * parameters)
    per_layer = GPT3.activation_bytes(1, 8, sequence=True, recompute="selective")
    assert activation_bytes(CHOICE, GPT3) == pytest.approx(96 * per_layer)  # 12 layers of 8 micro-batches
    assert activation_bytes(replace(CHOICE, batch=2), GPT3) == pytest.approx(24 * per_layer)


@pytest.mark.parametrize("sequence", [False, True])
def test_bytes_by_hand(sequence: bool) -> None:
    """b s h of 2 bytes are 50.3 MB; see the volumes of Narayanan et al., section 3.2."""
    priced = price(replace(CHOICE, data=2, tensor=4, sequence=sequence))
    message, layers, micro, groups = 50_331_648, 12, 32, 16
    if sequence:  # (6 all-gathers + 4 reduce-scatters) of (t-1) messages each in all
        assert priced.moved["tensor"] == {"NODE": 10 * 3 * message * layers * micro * groups}
    else:
        assert priced.moved["tensor"] == {"NODE": 4 * 2 * 3 * message * layers * micro * groups}
    there_and_back = 2 * micro * 7 * 8 * (message // 4 if sequence else message)
    assert priced.moved["pipeline"] == {"network": there_and_back}
    gradients = int(2 * ((GPT3.parameters - GPT3.embedding_parameters) / 8 + GPT3.embedding_parameters) / 4)
    assert sum(priced.moved["data"].values()) == pytest.approx(2 * gradients * 32, rel=1e-6)
    assert set(priced.moved["data"]) == {"NODE"}  # two tensor groups fit in a node


def test_the_bubble() -> None:
    priced = price(CHOICE)
    busy = priced.compute_s + priced.tensor_s + priced.pipeline_s
    assert priced.bubble_s == pytest.approx(busy * 7 / 64)
    assert priced.step_s == pytest.approx(busy * (64 + 7) / 64 + priced.data_s)
    assert price(replace(CHOICE, pipeline=1, data=8)).bubble_s == 0


def test_tensor_groups_across_nodes_cost_more() -> None:
    inside, across = price(replace(CHOICE, pipeline=8)), price(replace(CHOICE, tensor=16, pipeline=4))
    assert inside.moved["tensor"]["network"] == 0 < across.moved["tensor"]["network"]
    assert across.tensor_s > 2 * inside.tensor_s


def test_time_of_a_tensor_call_is_that_of_the_links() -> None:
    """(n-1)/n of 50 MB over NVLink, and a third more for latency."""
    calls = 10 * 12 * 64
    wire_s = 7 / 8 * 50_331_648 / NVLINK4.rate
    assert wire_s * calls < price(CHOICE).tensor_s < 1.4 * wire_s * calls


def test_groups_of_a_node_share_its_cards() -> None:
    """Eight groups of an eighth of the gradients each, at the same time: on eight cards, and on one."""
    one_each = replace(CHOICE, tensor=1, pipeline=1, data=2, batch=2)
    model, pcie = MODELS["gpt-7.5b"], machine_of("pcie4").links
    for links, times in ((LINKS, 8), (pcie, 1)):
        alone = price(one_each, "1+1", model, links)
        eight = price(replace(one_each, tensor=8), "8+8", model, links)
        assert alone.data_s == pytest.approx(times * eight.data_s, rel=0.05)
    plain = shared(Links(), 4)
    assert (plain.network_gbs, plain.message_gbs) == (Links().network_gbs / 4, Links().message_gbs / 4)


def test_messages_between_stages() -> None:
    for between, link in ((False, NVLINK4), (True, NDR)):
        seconds = message_s(LINKS, 1 << 30, between=between)
        assert seconds == pytest.approx(link.latency_us * 1e-6 + (1 << 30) / link.rate)
    assert message_s(Links(), 1200, between=True) == pytest.approx(26e-6)
    assert message_s(Links(), 4500, between=False) == pytest.approx(3e-6)


@pytest.mark.parametrize("name", GPUS)
def test_machines_with_gpus(name: str) -> None:
    machine, gpu = machine_with_gpus(name)
    assert machine is MACHINES[name]
    assert machine.links.fabric is not None
    assert gpu.tflops > 100


def test_neighbours_move_a_factor_of_two() -> None:
    found = neighbours(CHOICE, GPT3)
    assert {(one.tensor, one.pipeline, one.data) for one in found} == {
        (16, 4, 1), (4, 16, 1), (4, 8, 2), (8, 4, 2),
    }  # fmt: skip
    assert all(one.tensor * one.pipeline * one.data == 64 for one in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor": 5}, "96 heads cannot be divided by 5"),
        ({"pipeline": 7}, "96 layers cannot be divided by 7"),
        ({"micro_batch": 3}, "64 sequences of a batch cannot be divided by 3"),
        ({"recompute": "some"}, "recompute 'some' is not one of"),
    ],
)
def test_choices_that_cannot_be_made(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        price(replace(CHOICE, **change))


def test_what_is_exchanged_again_where_activations_are_recomputed() -> None:
    plain, full = (uses_of(replace(CHOICE, recompute=one), GPT3) for one in ("none", "full"))
    times = [sum(use.times for use in uses if use.names == ("tensor",)) for uses in (plain, full)]
    assert times == [10 * 12 * 64, 14 * 12 * 64]


# --- the command ---------------------------------------------------------------------------------

ARGUMENTS = (
    "layout",
    "--nodes",
    "8",
    "--gpus",
    "8",
    "--model",
    "gpt3-175b",
    "--tensor",
    "8",
    "--pipeline",
    "8",
)


def test_the_command_prints_the_price(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    document = tmp_path / "price.json"
    assert main([*ARGUMENTS, "--json", str(document)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("gpt3-175b (174.6 billion parameters) on 8 nodes (8x8), dgx-h100\n")
    for word in ("bubble", "network", "groups across nodes", "activations", "-> 8       8         1"):
        assert word in text
    found = json.loads(document.read_text())
    chosen = found["chosen"]
    assert (chosen["tensor"], chosen["pipeline"], chosen["data"], chosen["fits"]) == (8, 8, 1, True)
    assert chosen["bytes_by_level"]["tensor"].keys() == {"NODE"}
    parts = ("compute_s", "tensor_s", "pipeline_s", "bubble_s", "data_s")
    assert chosen["step_s"] == pytest.approx(sum(chosen[part] for part in parts))
    assert len(found["neighbours"]) == 4


def test_the_known_volumes_come_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Narayanan et al., section 3.2, of GPT-3 with t = 8: an all-reduce, a layer, a message, gradients."""
    assert main([*ARGUMENTS, "--no-sequence"]) == 0
    rows = {line.split("  ")[0]: line.split()[2:] for line in capsys.readouterr().out.splitlines()}
    tensor, pipeline = rows["tensor allreduce"], rows["pipeline shift"]
    assert tensor[:3] == ["50.3", "MB", str(4 * 12 * 1536)]
    assert tensor[-2:] == ["352.3", "MB"]  # 4 all-reduces of 2 7/8 of 50.3 MB
    assert pipeline[:3] == ["50.3", "MB", str(2 * 1536)]
    assert rows["gradients of a GPU, on average"][-2:] == ["5.5", "GB"]
    assert main([*ARGUMENTS, "--nodes", "16", "--json", "-"]) == 0
    found = {
        (one["dimension"], one["collective"]): one for one in json.loads(capsys.readouterr().out)["messages"]
    }
    assert found["pipeline", "shift"]["nbytes"] == 50_331_648 // 8  # scattered over the tensor group
    gradients = found["data", "reduce_scatter"]
    assert gradients["sent"] == gradients["nbytes"] / 2
    assert 5.4e9 < gradients["nbytes"] < 5.7e9


def test_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["layout"] == "8x8"


def test_what_does_not_fit_is_found_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layout", "--nodes", "2", "--model", "gpt3-175b", "--tensor", "8", "--pipeline", "2"]) == 1
    captured = capsys.readouterr()
    assert "GB of the 80 GB of a GPU: it does not fit" in captured.err
    assert "-> 8       2         1" in captured.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "gpt-5", "--nodes", "8"), "no model 'gpt-5'; there are"),
        (("--model", "gpt3-175b"), "one of --nodes and --layout is needed"),
        (
            ("--model", "gpt3-175b", "--nodes", "8", "--layout", "8x8"),
            "one of --nodes and --layout is needed",
        ),
        (("--model", "gpt3-175b", "--nodes", "8", "--tensor", "3"), "tensor 1 or 2 or 4"),
        (("--model", "gpt3-175b", "--nodes", "8", "--machine", "z1"), "no machine 'z1'; there are"),
        (("--model", "gpt3-175b", "--nodes", "8", "--machine", "pcie4"), "has no GPU of which"),
        (("--model", "gpt3-175b", "--layout", "4x16"), "dgx-h100 has 8 GPUs in a node"),
        (("--model", "gpt3-175b", "--nodes", "0"), "there must be at least one"),
        (("--model", "gpt3-175b", "--nodes", "8", "--batch", "0"), "--batch is 0"),
        (("--model", "gpt3-175b", "--nodes", "8", "--efficiency", "2"), "--efficiency is 2.0"),
        (("--model", "gpt3-175b", "--nodes", "8", "--json", "/no/such/file"), "cannot write /no/such/file"),
    ],
)
def test_misuse(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layout", *arguments]) == 2
    assert message in capsys.readouterr().err
