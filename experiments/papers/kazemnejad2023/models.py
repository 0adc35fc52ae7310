"""What is measured of one trained model: a task, an encoding and a seed.

All of it is kept, so that no model is trained again for another look at the numbers.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from experiments.papers.answering import accuracies, trained_to_answer
from experiments.papers.kazemnejad2023.counting import counting
from experiments.papers.kazemnejad2023.presets import Preset
from experiments.results.findings import Array
from nope_interp.models.config import Positions
from nope_interp.models.transformer import HookedTransformer
from nope_interp.sites import hook_name, pattern_hook
from nope_interp.streams import read_at
from nope_interp.tasks.answers import AnswerTask, TaskSplit
from nope_interp.tasks.dataset import dataset
from nope_interp.tasks.examples import Examples
from nope_interp.training.exact_match import exact_matches
from nope_interp.training.head_scale import Batch, scaled_scores, tuned_factors
from nope_interp.training.train import masked_loss
from probes.moments import LinearMoments

# Patterns are kept of the same examples for every seed, so that any two models can be compared.
_PATTERN_SEED = 0
_ALPHA = 1.0  # of the ridge regression, on standardised features
_FACTORS = tuple(round(0.7 + 0.1 * i, 1) for i in range(14))
_TUNING_STEPS, _TUNING_BATCH = 100, 32


def trained_and_read(
    preset: Preset, task_name: str, positions: Positions, steps: int, device: str, seed: int
) -> dict[str, Array]:
    """Trains a model and measures it.

    Accuracies are `within` and `beyond` [length]. The other arrays are those of `position_code`,
    for the trained model and, under "untrained/", for the same model before training; of
    `attention_patterns`; and, without an encoding, of `scalings` and, under "counting/", of
    `counting`, for the untrained model, too.
    """
    task = preset.task(task_name)
    model = trained_to_answer(
        task, preset.sizes, steps=steps, seed=seed, positions=positions, device=device
    )
    untrained = HookedTransformer(model.config).to(device)
    before = position_code(untrained, task, preset.n_read, seed)
    found = {
        "within": accuracies(model, task, preset.n_per_length, "validation", seed),
        "beyond": accuracies(model, task, preset.n_per_length, "test", seed),
        **position_code(model, task, preset.n_read, seed),
        **{f"untrained/{name}": values for name, values in before.items()},
        **attention_patterns(model, task, preset.n_patterns),
    }
    if positions == "none":
        found |= scalings(model, task, preset.n_per_length, preset.n_read, seed)
        for part, one in (("", model), ("untrained/", untrained)):
            counts = counting(one, task, preset.n_read, seed)
            found |= {f"{part}counting/{name}": value for name, value in counts.items()}
    return found


def position_code(
    model: HookedTransformer, task: AnswerTask, n_per_length: int, seed: int
) -> dict[str, Array]:
    """What ridge regression reads of position at the embedding and after every layer.

    Positions are "within" up to the last one that a training example can have, "beyond" after it.
    Three readings: "within", fitted on training examples of all training lengths and scored on
    validation examples; "extrapolated", the same fit scored on test examples, beyond; "refitted",
    fitted and scored on different test examples, both beyond. All lengths take part, since with
    one alone a position is a place in the task: the fifth symbol of the answer, say. Answers are
    the right ones, whatever the model would say. Position 0 is left out.

    Returns for each reading the mean absolute error in positions, `error`, that of the same fit to
    permuted positions, `shuffled`, and the mean position read, `read`, each
    [site position] with the embedding first and 0 where nothing is read; and how many activations
    are read, `count` [position]. `edge` is the first position beyond; of a task whose examples may
    be long and seldom are, no test example need reach it.
    """
    edge = max(task.n_tokens(length) for length in task.training_lengths)
    within, beyond = range(1, edge), range(edge, model.config.n_ctx)

    def drawn(split: TaskSplit, n: int) -> list[Examples]:
        return list(dataset(task, n, split=split, seed=seed).values())

    tests = [_apart(examples, n_per_length) for examples in drawn("test", 2 * n_per_length)]
    inside = _PositionFit(model, drawn("train", n_per_length), within, seed)
    outside = _PositionFit(model, [fit for fit, _ in tests], beyond, seed)
    test = [rest for _, rest in tests]
    readings = {
        "within": inside.score(drawn("validation", n_per_length), within),
        "extrapolated": inside.score(test, beyond),
        "refitted": outside.score(test, beyond),
    }
    return {"edge": np.array(edge)} | {
        f"{reading}/{name}": values
        for reading, scores in readings.items()
        for name, values in scores.items()
    }


def _apart(examples: Examples, n: int) -> tuple[Examples, Examples]:
    """The first `n` examples, and those after them that are not among them."""
    first, rest = examples.tokens[:n], examples.tokens[n:]
    new = ~(rest[:, None] == first).all(dim=-1).any(dim=1)
    return examples[:n], examples[n + new.nonzero()[:, 0]]


class _PositionFit:
    """Ridge regressions of position at the embedding and after every layer, from activations
    at some positions."""

    def __init__(
        self, model: HookedTransformer, examples: Iterable[Examples], among: range, seed: int
    ) -> None:
        self._model = model
        self._sites = [
            hook_name(0, "resid_pre"),
            *(hook_name(layer, "resid_post") for layer in range(model.config.n_layers)),
        ]
        self._generator = torch.Generator().manual_seed(seed)
        moments = {site: LinearMoments() for site in self._sites}
        for site, activations, labels in self._chosen(examples, among):
            moments[site].update(activations, labels)
        # None where no example stands at these positions: there is nothing to score either.
        self._fits = {site: of.ridge(_ALPHA) for site, of in moments.items() if of.n}

    def score(self, examples: Iterable[Examples], among: range) -> dict[str, Array]:
        """`error`, `shuffled`, `read` and `count`, as `position_code` describes them."""
        shape = len(self._sites), self._model.config.n_ctx
        sums = {name: np.zeros(shape) for name in ("error", "shuffled", "read")}
        count = np.zeros(shape)
        for site, activations, labels in self._chosen(examples, among):
            coefficients, intercepts = self._fits[site]
            read = activations.cpu().numpy() @ coefficients + intercepts
            errors = np.abs(read - labels.numpy())
            at, row = labels[:, 0].long().numpy(), self._sites.index(site)
            terms = {"error": errors[:, 0], "shuffled": errors[:, 1], "read": read[:, 0]}
            for name, values in terms.items():
                np.add.at(sums[name][row], at, values)
            np.add.at(count[row], at, 1)
        means = {name: total / np.maximum(count, 1) for name, total in sums.items()}
        return means | {"count": count[0]}

    def _chosen(
        self, examples: Iterable[Examples], among: range
    ) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Every site, its activations [activation d_model], and their positions beside the same
        positions permuted [activation 2]."""
        for some in examples:
            at = torch.arange(some.tokens.shape[1])
            wanted = (at >= among.start) & (at < among.stop) & (at < some.length[:, None])
            positions = at.expand(wanted.shape)[wanted].double()
            if not len(positions):
                continue
            order = torch.randperm(len(positions), generator=self._generator)
            labels = torch.stack([positions, positions[order]], dim=1)
            reads = dict.fromkeys(self._sites, partial(_chosen, wanted))
            found = read_at(self._model, some.tokens, reads, batch_size=len(some.tokens))
            yield from ((site, activations, labels) for site, [activations] in found.items())


def _chosen(wanted: Bool[Tensor, "example pos"], x: Tensor) -> Float[Tensor, "activation d_model"]:
    return x[wanted.to(x.device)].double()


def attention_patterns(model: HookedTransformer, task: AnswerTask, n: int) -> dict[str, Array]:
    """Attention on `n` held-out examples of four lengths, which do not depend on the model's seed.

    Returns for each length its patterns, `patterns/<length>` [layer example head query key], and
    the examples' numbers of tokens, `tokens/<length>` [example]: queries from there on are padding.
    """
    found = {}
    for length, examples in _pattern_examples(task, n).items():
        found[f"patterns/{length}"] = _patterns(model, examples).numpy()
        found[f"tokens/{length}"] = examples.length.numpy()
    return found


def _pattern_examples(task: AnswerTask, n: int) -> dict[int, Examples]:
    """Of the middle and the last length trained on and tested."""
    seed, train, test = _PATTERN_SEED, task.training_lengths, task.test_lengths
    inside = [train[len(train) // 2], train[-1]]
    outside = [test[(len(test) - 1) // 2], test[-1]]
    return {
        **dataset(task, n, split="validation", seed=seed, lengths=inside),
        **dataset(task, n, split="test", seed=seed, lengths=outside),
    }


def _patterns(
    model: HookedTransformer, examples: Examples
) -> Float[Tensor, "layer example head query key"]:
    names = [pattern_hook(layer) for layer in range(model.config.n_layers)]
    reads = dict.fromkeys(names, Tensor.cpu)
    found = read_at(model, examples.tokens, reads, batch_size=len(examples.tokens))
    return torch.stack([found[name][0] for name in names])


def scalings(
    model: HookedTransformer, task: AnswerTask, n_per_length: int, n_tuned: int, seed: int
) -> dict[str, Array]:
    """Accuracy and entropy of attention before and after scores are multiplied.

    Factors are chosen on `n_tuned` examples of each of the shorter half of the test lengths, the
    longest of which is `tuned_length`; no test example is among them. "uniform" is the one factor
    of a grid with the most exact answers there, and with the least loss where answers tie; "heads"
    holds a factor for each head, from steps of Adam on these examples, weights frozen; "control"
    factors for each head from as many steps on as many examples, of the longest training lengths.

    Returns for "none" and each of the three the `factors` [layer head], accuracies `within` and
    `beyond` [length], and the mean `entropy` of the queries of `n_tuned` examples in nats
    [length layer head], training lengths first; and `most`, that of uniform attention [length].
    Query 0 is left out.
    """
    longer = task.test_lengths[: (len(task.test_lengths) + 1) // 2]
    drawn = dataset(task, n_tuned + n_per_length, split="test", seed=seed)
    tests = {length: _apart(examples, n_tuned) for length, examples in drawn.items()}
    tuning = [tests[length][0] for length in longer]
    training = list(dataset(task, n_tuned, split="train", seed=seed).values())[-len(tuning) :]
    scored = {
        "within": list(dataset(task, n_per_length, split="validation", seed=seed).values()),
        "beyond": [rest for _, rest in tests.values()],
    }
    read = [examples[:n_tuned] for part in scored.values() for examples in part]
    shape = model.config.n_layers, model.config.n_heads
    chosen = {
        "none": torch.ones(shape),
        "uniform": torch.full(shape, _best_factor(model, tuning)),
        "heads": tuned_factors(model, _batches(tuning, seed)).cpu(),
        "control": tuned_factors(model, _batches(training, seed)).cpu(),
    }
    found = {"tuned_length": np.array(longer[-1]), "most": _uniform_entropy(read)}
    for name, factors in chosen.items():
        with scaled_scores(model, factors):
            found[f"{name}/factors"] = factors.double().numpy()
            found[f"{name}/entropy"] = np.stack([_entropy(model, some) for some in read])
            for part, every in scored.items():
                shares = [exact_matches(model, some).double().mean() for some in every]
                found[f"{name}/{part}"] = torch.stack(shares).numpy()
    return found


def _best_factor(model: HookedTransformer, examples: Sequence[Examples]) -> float:
    """Of the grid, by exact answers, then by loss."""
    shape = model.config.n_layers, model.config.n_heads

    @torch.no_grad()
    def merit(factor: float) -> tuple[int, float]:
        with scaled_scores(model, torch.full(shape, factor)):
            right = sum(int(exact_matches(model, some).sum()) for some in examples)
            losses = [masked_loss(model, some.tokens, some.answer) for some in examples]
        return right, -float(torch.stack(losses).mean())

    return max(_FACTORS, key=merit)


def _batches(examples: Sequence[Examples], seed: int) -> Iterator[Batch]:
    """Batches of one random length each."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(_TUNING_STEPS):
        of_length = examples[int(torch.randint(len(examples), (), generator=generator))]
        which = torch.randint(len(of_length.tokens), (_TUNING_BATCH,), generator=generator)
        batch = of_length[which]
        yield batch.tokens, batch.answer


def _entropy(model: HookedTransformer, examples: Examples) -> Float[Array, "layer head"]:
    """Mean over queries, in nats."""
    entropies = torch.special.entr(_patterns(model, examples)).sum(dim=-1)
    by_query = rearrange(entropies, "layer example head query -> example query layer head")
    return by_query[_real_queries(examples)].mean(dim=0).double().numpy()


def _uniform_entropy(read: Iterable[Examples]) -> Float[Array, " length"]:
    """Mean over the same queries of log m, for the m tokens that a query sees."""
    means = []
    for some in read:
        seen = torch.arange(1.0, some.tokens.shape[1] + 1).log().expand(some.tokens.shape)
        means.append(float(seen[_real_queries(some)].mean()))
    return np.array(means)


def _real_queries(examples: Examples) -> Bool[Tensor, "example query"]:
    """All but the begin token's and padding."""
    at = torch.arange(examples.tokens.shape[1])
    return (at > 0) & (at < examples.length[:, None])
