"""What a way to be parallel costs: the published formulas by hand, and `hpccoll layout`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpccoll.cli import main
from hpccoll.errors import UsageError
from hpccoll.parallel.gpus import GPUS, gpu_of, links_of
from hpccoll.parallel.models import MODELS, Model, model_of
from hpccoll.parallel.price import (
    Choice,
    activation_bytes,
    neighbours,
    price_choice,
    shared,
    state_bytes,
    uses_of,
)
from hpccoll.plans.collective import Collective
from hpccoll.plans.select import Tuning, candidates
from hpccoll.topology.layout import Layout

GPT3 = MODELS["gpt3-175b"]
CHOICE = Choice(tensor=8, pipeline=8, data=1, batch=64)
LINKS = links_of(gpu_of("h100"), 8)


def price(choice: Choice, text: str = "8x8", model: Model = GPT3) -> Any:
    return price_choice(choice, model, Layout.parse(text), LINKS, 5e14)


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
    """(n-1)/n of 50 MB at 368 GB/s, a little more for latency."""
    priced = price(CHOICE)
    calls = 10 * 12 * 64
    wire_s = 7 / 8 * 50_331_648 / 368e9
    assert wire_s * calls < priced.tensor_s < 1.3 * wire_s * calls


def test_groups_of_a_node_share_its_links() -> None:
    alone = price(
        replace(CHOICE, tensor=1, pipeline=1, data=2, batch=2, micro_batch=1), "1+1", MODELS["gpt-7.5b"]
    )
    eight = price(
        replace(CHOICE, tensor=8, pipeline=1, data=2, batch=2, micro_batch=1), "8+8", MODELS["gpt-7.5b"]
    )
    # Eight groups of an eighth of the gradients each, at the same time on a node's cards.
    assert eight.data_s == pytest.approx(alone.data_s, rel=0.05)
    assert shared(LINKS, 4).network_gbs == LINKS.network_gbs / 4


@pytest.mark.parametrize("name", GPUS)
def test_no_plan_inside_a_node_is_faster_than_the_links(name: str) -> None:
    gpu, nbytes = gpu_of(name), 1 << 28
    for ranks in (2, 4, 8):
        links = shared(links_of(gpu, 8), 8 // ranks)
        layout, tuning = Layout.parse(str(ranks)), Tuning(native=False, links=links)
        for collective, part in (("allreduce", 2.0), ("allgather", 1.0), ("reduce_scatter", 1.0)):
            count = nbytes // (1 if collective == "allreduce" else ranks)
            best = candidates(Collective(collective, ranks, count), layout, 1, tuning)[0]
            least = part * (ranks - 1) / ranks * nbytes / (gpu.inside_gbs * 1e9)
            assert 0.999 * least <= best.time_s <= 1.3 * least


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
    assert text.startswith("gpt3-175b (174.6 billion parameters) on 8 nodes (8x8), h100\n")
    for word in ("bubble", "network", "groups across nodes", "activations", "-> 8       8         1"):
        assert word in text
    found = json.loads(document.read_text())
    chosen = found["chosen"]
    assert (chosen["tensor"], chosen["pipeline"], chosen["data"], chosen["fits"]) == (8, 8, 1, True)
    assert chosen["bytes_by_level"]["tensor"].keys() == {"NODE"}
    parts = ("compute_s", "tensor_s", "pipeline_s", "bubble_s", "data_s")
    assert chosen["step_s"] == pytest.approx(sum(chosen[part] for part in parts))
    assert len(found["neighbours"]) == 4


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
        (("--model", "gpt3-175b", "--nodes", "8", "--gpu", "z1"), "no GPU 'z1'; there are"),
        (("--model", "gpt3-175b", "--nodes", "0"), "must be at least 1"),
        (("--model", "gpt3-175b", "--nodes", "8", "--batch", "0"), "--batch is 0"),
        (("--model", "gpt3-175b", "--nodes", "8", "--efficiency", "2"), "--efficiency is 2.0"),
        (("--model", "gpt3-175b", "--nodes", "8", "--json", "/no/such/file"), "cannot write /no/such/file"),
    ],
)
def test_misuse(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layout", *arguments]) == 2
    assert message in capsys.readouterr().err
