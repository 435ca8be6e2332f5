"""Trajectories in memory: examples, the held-out split, batches, and which ids the drafters keep.

Reads what `trajectories` wrote. No model runs here; the target's soft labels come from its stored hidden
states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from acceptlab.drafters.base import Rows
from acceptlab.training.taps import read_taps
from acceptlab.training.trajectories import check_features, features_path, read_part, whole_parts

HELD_OUT_EVERY = 25
"""One item in so many is held out, by its number."""


@dataclass(frozen=True)
class Example:
    """One trajectory.

    `features` are rows for tokens shared_len.. of prompt + output, memory-mapped float16; `taps` are hidden states in
    front of layers of the target, a row a token but the last (see `taps`), where a drafter reads them.
    """

    item: int
    domain: str
    token_ids: np.ndarray
    prompt_len: int
    shared_len: int
    features: np.ndarray
    log_norms: np.ndarray
    answer: int = 0
    taps: tuple[np.ndarray, ...] = ()

    @property
    def is_held_out(self) -> bool:
        """Whether the example is kept from training."""
        return self.item % HELD_OUT_EVERY == HELD_OUT_EVERY - 1

    @property
    def prompt(self) -> bytes:
        """The prompt's token ids, to compare prompts by."""
        return self.token_ids[: self.prompt_len].tobytes()

    @property
    def output_len(self) -> int:
        """Tokens that the target wrote, its EOS included."""
        return len(self.token_ids) - self.prompt_len


@dataclass(frozen=True)
class Batch:
    """Padded trajectories with the rows that are trained on, one a predicted token.

    `labels[n]` is the token of row n, `features[n]` the target's hidden state that predicted it and
    `log_norms[n]` the log normaliser of its logits. `windows` (windows, gamma) points into the rows, -1 past
    the end of a trajectory.
    """

    rows: Rows
    labels: Int[Tensor, " rows"]
    features: Float[Tensor, "rows size"]
    log_norms: Float[Tensor, " rows"]
    windows: Int[Tensor, "windows gamma"]

    @property
    def n_tokens(self) -> int:
        """Tokens that are trained on."""
        return len(self.labels)


def load_examples(
    folders: Sequence[Path], *, min_output_len: int = 4, tap_layers: Sequence[int] = ()
) -> list[Example]:
    """All trajectories of these folders, with the hidden states of `taps.write_taps` where some are asked for.

    Raises:
        UsageError: no part there, or parts without hidden states.
        RunError: hidden states that are not those of their part.
    """
    examples: list[Example] = []
    for part in whole_parts(folders):
        examples.extend(read_examples(part, min_output_len=min_output_len, tap_layers=tap_layers))
    return examples


def split_examples(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Those to train on and those held out.

    A prompt may stand in a file under several numbers, so what shares a prompt with a held-out example is in neither.
    """
    held_out = [example for example in examples if example.is_held_out]
    prompts = {example.prompt for example in held_out}
    return [e for e in examples if not e.is_held_out and e.prompt not in prompts], held_out


def read_examples(
    part: Path, *, min_output_len: int = 4, tap_layers: Sequence[int] = ()
) -> Iterator[Example]:
    """The trajectories of one part whose output is long enough.

    Raises:
        UsageError: there are no hidden states beside it.
        RunError: those of some layer are not this part's.
    """
    rows = read_part(part).to_pylist()
    if not rows:
        return
    check_features(part)
    features = np.load(features_path(part), mmap_mode="r")
    taps = [read_taps(part, layer, rows) for layer in tap_layers]
    at = 0
    tap_at = 0
    for row in rows:
        ids = np.array(row["prompt_token_ids"] + row["output_token_ids"], dtype=np.int64)
        n_rows = len(ids) - row["shared_len"]
        if len(row["output_token_ids"]) >= min_output_len:
            yield Example(
                item=row["item"],
                domain=row["domain"],
                token_ids=ids,
                prompt_len=len(row["prompt_token_ids"]),
                shared_len=row["shared_len"],
                features=features[at : at + n_rows],
                log_norms=np.array(row["target_log_norms"], dtype=np.float32),
                answer=row["answer"],
                taps=tuple(states[tap_at : tap_at + len(ids) - 1] for states in taps),
            )
        at += n_rows
        tap_at += len(ids) - 1


def make_batch(
    examples: Sequence[Example], *, gamma: int, offsets: Sequence[int], with_features: bool = False
) -> Batch:
    """Pad examples and cut their outputs into windows of `gamma` tokens.

    Args:
        examples: the trajectories.
        gamma: window length.
        offsets: of every example, how many output tokens lie before its first full window (0 to gamma - 1);
        these
            tokens make a window of their own, which is shorter.
        with_features: also give the hidden states of all positions, which feature-level heads read.
    """
    sequence, position, depth, labels, windows = [], [], [], [], []
    n_rows = 0
    for index, (example, offset) in enumerate(zip(examples, offsets, strict=True)):
        n = example.output_len
        sequence.append(torch.full((n,), index))
        position.append(torch.arange(example.prompt_len - 1, example.prompt_len - 1 + n))
        labels.append(torch.from_numpy(example.token_ids[example.prompt_len :]))
        starts = [*([0] if offset else []), *range(offset, n, gamma)]
        for start, stop in zip(starts, [*starts[1:], n], strict=True):
            row = torch.full((gamma,), -1)
            row[: stop - start] = torch.arange(n_rows + start, n_rows + stop)
            windows.append(row)
            depth.append(torch.arange(stop - start))
        n_rows += n
    token_ids = torch.zeros(len(examples), max(len(e.token_ids) for e in examples) - 1, dtype=torch.long)
    for index, example in enumerate(examples):
        token_ids[index, : len(example.token_ids) - 1] = torch.from_numpy(example.token_ids[:-1])
    features, start = _pad_features(examples, token_ids.shape[1]) if with_features else (None, 0)
    own = [e.features[e.prompt_len - e.shared_len :] for e in examples]
    return Batch(
        rows=Rows(
            token_ids,
            torch.cat(sequence),
            torch.cat(position),
            torch.cat(depth),
            features,
            start,
            _pad_taps(examples, token_ids.shape[1]),
        ),
        labels=torch.cat(labels),
        features=torch.from_numpy(np.concatenate(own).astype(np.float32)),
        log_norms=torch.from_numpy(np.concatenate([e.log_norms for e in examples])),
        windows=torch.stack(windows),
    )


def _pad_features(
    examples: Sequence[Example], length: int
) -> tuple[Float[Tensor, "sequences tail size"], int]:
    """Hidden states from the first position that all examples have one at, right-padded with zeros."""
    start = max(e.shared_len for e in examples) - 1
    size = examples[0].features.shape[1]
    padded = torch.zeros(len(examples), length - start, size)
    for index, example in enumerate(examples):
        rows = example.features[start + 1 - example.shared_len :]
        padded[index, : len(rows)] = torch.from_numpy(rows.astype(np.float32))
    return padded, start


def _pad_taps(examples: Sequence[Example], length: int) -> Float[Tensor, "taps sequences length size"] | None:
    """Hidden states of all taps, right-padded with zeros; None where there are none."""
    n_taps = len(examples[0].taps)
    if n_taps == 0:
        return None
    padded = torch.zeros(n_taps, len(examples), length, examples[0].taps[0].shape[1])
    for index, example in enumerate(examples):
        for tap, states in enumerate(example.taps):
            padded[tap, index, : len(states)] = torch.from_numpy(states.astype(np.float32))
    return padded


def draw_batches(
    examples: Sequence[Example],
    *,
    batch_tokens: int,
    gamma: int,
    seed: int,
    start_step: int = 0,
    with_features: bool = False,
) -> Iterator[Batch]:
    """Endless batches of about `batch_tokens` output tokens: the items of an epoch in a random order.

    Step n is the same whether or not the steps before it were drawn, so a resumed run sees the same data.
    """
    step = epoch = 0
    while True:
        rng = np.random.default_rng([seed, epoch])
        for group in _group(examples, rng.permutation(len(examples)), batch_tokens):
            if step >= start_step:
                offsets = np.random.default_rng([seed, epoch, step]).integers(gamma, size=len(group))
                yield make_batch(group, gamma=gamma, offsets=offsets.tolist(), with_features=with_features)
            step += 1
        epoch += 1


def _group(examples: Sequence[Example], order: np.ndarray, batch_tokens: int) -> Iterator[list[Example]]:
    group: list[Example] = []
    n_tokens = 0
    for index in order:
        group.append(examples[index])
        n_tokens += examples[index].output_len
        if n_tokens >= batch_tokens:
            yield group
            group, n_tokens = [], 0
    if group:
        yield group


def mean_target_probs(
    examples: Sequence[Example], output_weight: Float[Tensor, "vocab size"], *, max_tokens: int
) -> Float[Tensor, " vocab"]:
    """The target's mean next-token distribution along a spread of the examples.

    Which ids are worth keeping.
    """
    total = torch.zeros(len(output_weight), dtype=torch.float64)
    n_tokens = 0
    stride = max(1, sum(e.output_len for e in examples) // max_tokens)
    for example in examples[::stride]:
        rows = torch.from_numpy(
            example.features[example.prompt_len - example.shared_len :].astype(np.float32)
        )
        total += (rows @ output_weight.T).softmax(dim=-1).sum(dim=0).double()
        n_tokens += len(rows)
    return total / n_tokens


@torch.inference_mode()
def learn_prompts(examples: Sequence[Example], output_weight: Float[Tensor, "vocab size"]) -> list[Example]:
    """Count the user's turn as output too, in the first answer to each prompt: more rows from the same passes.

    The target's distributions there are as good as any to imitate. They are none of the accepted length, so
    this is for losses of single positions.
    """
    widened = []
    for example in examples:
        n_prompt = example.prompt_len - example.shared_len
        if example.answer or n_prompt < 1:
            widened.append(example)
            continue
        rows = torch.from_numpy(example.features[:n_prompt].astype(np.float32))
        norms = (rows @ output_weight.T).logsumexp(dim=-1).numpy()
        widened.append(
            replace(
                example, prompt_len=example.shared_len, log_norms=np.concatenate([norms, example.log_norms])
            )
        )
    return widened
