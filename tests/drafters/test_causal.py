"""The causal drafter: its cut output layer, its files, and running it as a language model with a tree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from acceptlab.drafters.base import Rows
from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.files import config_of, load_drafter, save_drafter, to_whole_numbers
from acceptlab.drafters.llama import LlamaShape
from acceptlab.drafters.model import DrafterModel
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.errors import RunError, UsageError
from acceptlab.pairs import halves
from acceptlab.pairs.lean_drafter import LeanDrafter, can_draft_lean, plain_drafter
from tests.training.helpers import VOCAB, tiny_target

KEPT = torch.tensor([2, 3, 5, 8, 13, 21, 34, 55])


def make_output(dtype: torch.dtype = torch.float32) -> CutOutput:
    shares = torch.linspace(1, 3, VOCAB, dtype=torch.float64)
    output = CutOutput(KEPT, shares, 32)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        output.rest_weight.copy_(torch.randn(32, generator=rng) / 6)
        output.bias.copy_(torch.randn(9, generator=rng))
    return output.to(dtype)


def make_drafter() -> CausalDrafter:
    return CausalDrafter.from_target(tiny_target(), (0, -1), make_output())


def save(folder: Path, drafter: CausalDrafter) -> None:
    save_drafter(folder, drafter, config_of(drafter, "tiny", {"why": "test"}))


def test_a_grown_drafter_starts_as_it_was_and_every_new_matrix_learns() -> None:
    target, drafter = tiny_target(), make_drafter()
    grown = drafter.grown(target, (1, -1))
    assert (grown.shape.n_layers, drafter.shape.n_layers) == (4, 2)
    ids = torch.arange(24).view(2, 12)
    torch.testing.assert_close(grown.hidden(ids), drafter.hidden(ids), rtol=0, atol=0)
    assert torch.equal(grown.layers[1].mlp.up_proj.weight, target.layers[1].mlp.up_proj.weight)
    assert torch.equal(grown.layers[2].self_attn.q_proj.weight, target.layers[-1].self_attn.q_proj.weight)
    assert torch.equal(grown.layers[3].mlp.up_proj.weight, drafter.layers[1].mlp.up_proj.weight)
    optimizer = torch.optim.SGD(grown.parameters(), lr=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        grown.hidden(ids).square().mul(torch.linspace(0, 1, 32)).sum().backward()
        optimizer.step()
    assert all(bool(p.grad.any()) for layer in grown.layers for p in layer.parameters() if p.grad is not None)
    assert all(p.grad is not None for layer in grown.layers for p in layer.parameters())


def test_an_outlier_coarsens_its_own_group_only_and_zeros_stay_zeros() -> None:
    matrix = torch.full((2, 96), 0.01)
    matrix[0, 5], matrix[1] = 1.0, 0.0
    whole, scales = to_whole_numbers(matrix)
    assert (whole.shape, scales.shape) == ((2, 96), (2, 3))
    assert whole[0, [4, 5, 40]].tolist() == [1, 127, 127]
    assert not whole[1].any()
    assert to_whole_numbers(torch.ones(1, 40))[1].shape == (1, 5)  # groups that divide the row


def test_eight_bits_halve_a_file_and_round_each_weight_by_at_most_half_a_level(tmp_path: Path) -> None:
    drafter = make_drafter()
    save(tmp_path / "16", drafter)
    save_drafter(tmp_path / "8", drafter, config_of(drafter, "tiny", {}), bits=8)
    embeddings = tiny_target().embed_tokens.weight
    stored = load_file(tmp_path / "8" / "model.safetensors")
    matrix = drafter.layers[0].mlp.up_proj.weight.detach()
    assert stored["layers.0.mlp.up_proj.weight"].dtype == torch.int8
    loaded = load_drafter(tmp_path / "8", embeddings)
    assert isinstance(loaded, CausalDrafter)
    levels = matrix.reshape(len(matrix), -1, 32).abs().amax(dim=-1, keepdim=True) / 127
    error = (loaded.layers[0].mlp.up_proj.weight.detach() - matrix).reshape(levels.shape[0], -1, 32).abs()
    # half a level, and 127 times the rounding of a scale to 16 bits, 2^-11
    assert bool((error <= levels * (0.5 + 127 * 2**-11 + 1e-3)).all())
    assert float(error.max()) > 0
    # what is no matrix is as in 16 bits
    plain = load_drafter(tmp_path / "16", embeddings)
    torch.testing.assert_close(loaded.norm.weight, plain.norm.weight, rtol=0, atol=0)
    torch.testing.assert_close(loaded.output.bias, plain.output.bias, rtol=0, atol=0)
    sizes = [(tmp_path / bits / "model.safetensors").stat().st_size for bits in ("8", "16")]
    assert sizes[0] < 0.7 * sizes[1]


def test_expanded_logits_are_the_same_distribution() -> None:
    output = make_output(torch.float64)
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probs = output.expand(logits).softmax(-1)
    classes = logits.softmax(-1)
    assert probs.shape == (4, VOCAB)
    assert bool((probs > 0).all())
    # shares are kept in float32
    torch.testing.assert_close(probs[:, KEPT], classes[:, :-1], rtol=1e-6, atol=0)
    rest = [i for i in range(VOCAB) if i not in KEPT]
    torch.testing.assert_close(probs[:, rest].sum(-1), classes[:, -1], rtol=1e-6, atol=0)
    shares = torch.linspace(1, 3, VOCAB, dtype=torch.float64)[rest]
    torch.testing.assert_close(
        probs[0, rest] / probs[0, rest].sum(), shares / shares.sum(), rtol=1e-6, atol=0
    )


def test_classes_and_merged_targets() -> None:
    output = make_output()
    assert output.classes(torch.tensor([2, 4, 55, 60])).tolist() == [0, 8, 7, 8]
    target = tiny_target()
    hidden = torch.randn(3, 32, generator=torch.Generator().manual_seed(2))
    full = (hidden @ target.output_weight.T).detach()
    merged = output.merge(hidden, full.logsumexp(-1), target.output_weight[KEPT].detach())
    probs = full.softmax(-1)
    torch.testing.assert_close(merged[:, :-1], probs[:, KEPT])
    torch.testing.assert_close(merged[:, -1], 1 - probs[:, KEPT].sum(-1))


def test_output_gradients_are_those_of_a_plain_linear_layer() -> None:
    output = make_output(torch.float64)
    rng = torch.Generator().manual_seed(3)
    hidden = torch.randn(5, 32, generator=rng, dtype=torch.float64, requires_grad=True)
    kept = torch.randn(8, 32, generator=rng, dtype=torch.float64)
    weights = torch.randn(5, 9, generator=rng, dtype=torch.float64)
    inputs = [hidden, output.rest_weight, output.bias]
    plain = hidden @ torch.cat([kept, output.rest_weight[None]]).T + output.bias
    fast = output(hidden, output.stack_weight(kept))
    torch.testing.assert_close(fast.detach(), plain.detach())
    expected = torch.autograd.grad((plain * weights).sum(), inputs)
    for mine, theirs in zip(torch.autograd.grad((fast * weights).sum(), inputs), expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def rounded_drafter() -> CausalDrafter:
    """One whose weights are 16-bit numbers, as those of every stored drafter are."""
    drafter = make_drafter()
    with torch.no_grad():
        for weight in drafter.layers.parameters():
            weight.copy_(halves.rounded(weight))
    return drafter


def made(lean: bool) -> DrafterModel:
    """The drafter behind the protocol, in plain torch or on weights of 16 bits."""
    model = DrafterModel(rounded_drafter(), "tiny")
    if lean and not can_draft_lean(model.drafter):
        pytest.skip("this PyTorch has no products with weights of 16 bits")
    return LeanDrafter(model) if lean else model


def full_logits(drafter: CausalDrafter, ids: list[int]) -> Tensor:
    """Logits behind the last token of a plain sequence."""
    with torch.no_grad():
        n = len(ids) - 1
        zero = torch.tensor([0])
        hidden = drafter.row_hidden(Rows(torch.tensor([ids]), zero, torch.tensor([n]), zero))
        return drafter.output.expand(drafter.output(hidden, drafter.drafting_weight()))[0]


@pytest.mark.parametrize("lean", [False, True])
def test_tree_pass_equals_one_forward_a_path_and_survives_keep(lean: bool) -> None:
    drafter, model = rounded_drafter(), made(lean)
    prompt = list(range(3, 10))
    model.prefill(torch.tensor(prompt[:4]))
    model.prefill(torch.tensor(prompt[4:]))
    assert model.n_slots == 7
    # two children of the root's token, and one below the second child
    tokens, positions = torch.tensor([20, 30, 31, 40]), torch.tensor([7, 8, 8, 9])
    seen = torch.zeros(4, 11, dtype=torch.bool)
    seen[:, :8] = True
    for row, slots in enumerate([[7], [7, 8], [7, 9], [7, 9, 10]]):
        seen[row, slots] = True
    logits = model.forward(tokens, positions, seen)
    paths = [[20], [20, 30], [20, 31], [20, 31, 40]]
    for row, path in enumerate(paths):
        # float32, two layers
        torch.testing.assert_close(logits[row], full_logits(drafter, prompt + path), rtol=0, atol=2e-5)
    model.keep(torch.tensor([*range(8), 9, 10]))
    assert model.n_slots == 10
    after = model.forward(torch.tensor([50]), torch.tensor([10]), torch.ones(1, 11, dtype=torch.bool))
    torch.testing.assert_close(after[0], full_logits(drafter, [*prompt, 20, 31, 40, 50]), rtol=0, atol=2e-5)


@pytest.mark.parametrize("lean", [False, True])
def test_the_cache_grows_past_its_first_capacity(lean: bool) -> None:
    drafter, model = rounded_drafter(), made(lean)
    ids = torch.randint(VOCAB, (300,), generator=torch.Generator().manual_seed(4))
    model.prefill(ids[:299])
    logits = model.forward(ids[299:], torch.tensor([299]), torch.ones(1, 300, dtype=torch.bool))
    torch.testing.assert_close(logits[0], full_logits(drafter, ids.tolist()), rtol=0, atol=5e-5)
    model.reset()
    assert model.n_slots == 0


def test_weights_that_16_bits_do_not_hold_are_not_run_in_16_bits() -> None:
    exact = DrafterModel(rounded_drafter(), "tiny")
    assert can_draft_lean(exact.drafter) == halves.is_available()
    with torch.no_grad():
        exact.drafter.layers[1].mlp.down_proj.weight[3, 5] = 1 / 3
    assert not can_draft_lean(exact.drafter)


def test_a_lean_drafter_keeps_its_weights_once_and_gives_them_back() -> None:
    model = made(lean=True)
    assert isinstance(model, LeanDrafter)
    n_numbers = sum(p.numel() for p in rounded_drafter().layers.parameters() if p.ndim == 2)
    assert sum(p.numel() for p in model.drafter.layers.parameters() if p.ndim == 2) == 0
    assert model.nbytes == 2 * (n_numbers + model.drafter.drafting_weight().numel())
    plain, expected = plain_drafter(model), rounded_drafter()
    assert plain.embeddings is model.drafter.embeddings
    for mine, theirs in zip(plain.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    # no matrix keeps a larger one in memory that it was cut from
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in plain.layers.parameters())
    assert plain_drafter(DrafterModel(expected, "tiny")) is expected


def test_loaded_drafters_hold_16_bit_numbers_whatever_they_are_stored_in(tmp_path: Path) -> None:
    drafter = make_drafter()
    for bits in (8, 16):
        save_drafter(tmp_path / str(bits), drafter, config_of(drafter, "tiny", {}), bits=bits)
        loaded = load_drafter(tmp_path / str(bits), tiny_target().embed_tokens.weight)
        assert all(halves.holds(p) for p in loaded.layers.parameters())
        assert halves.holds(loaded.drafting_weight())


def test_saved_drafters_load_as_they_were_without_the_embeddings(tmp_path: Path) -> None:
    drafter = make_drafter()
    save(tmp_path / "d", drafter)
    loaded = load_drafter(tmp_path / "d", tiny_target().embed_tokens.weight)
    ids = list(range(3, 20))
    # weights are kept in 16 bits
    torch.testing.assert_close(full_logits(loaded, ids), full_logits(drafter, ids), rtol=0, atol=5e-2)
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == ["config.json", "model.safetensors"]
    assert json.loads((tmp_path / "d" / "config.json").read_text())["acceptlab_drafter"] == "causal"
    n_floats = sum(p.numel() for p in drafter.parameters()) + VOCAB
    assert (tmp_path / "d" / "model.safetensors").stat().st_size < 2 * n_floats + 8192  # plus the header


def test_wrong_targets_and_broken_folders_are_refused(tmp_path: Path) -> None:
    drafter = make_drafter()
    weight = tiny_target().embed_tokens.weight
    save(tmp_path / "d", drafter)
    with pytest.raises(UsageError, match="other embeddings"):
        load_drafter(tmp_path / "d", weight + 1)
    with pytest.raises(UsageError, match=r"\(61, 32\)"):
        load_drafter(tmp_path / "d", weight[:50])
    with pytest.raises(UsageError, match="no drafter"):
        load_drafter(tmp_path / "none", weight)
    (tmp_path / "d" / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(RunError, match="cannot load"):
        load_drafter(tmp_path / "d", weight)
    (tmp_path / "d" / "config.json").write_text("{}")
    with pytest.raises(RunError, match="configuration"):
        load_drafter(tmp_path / "d", weight)


def test_other_architectures_are_refused() -> None:
    class Config:
        model_type = "gpt2"

    with pytest.raises(UsageError, match="gpt2"):
        LlamaShape.from_config(Config())
