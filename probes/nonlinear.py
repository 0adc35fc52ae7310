"""A two-layer ReLU probe, after Chi et al. 2023 and Haviv et al. 2022 (details recalled)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from probes.checks import check_positive, check_seed, check_whole
from probes.errors import ProbeError
from probes.streaming import PositionProbe, require_finite, upcast

Rows = Float[Tensor, "rows d"]
Labels = Int[Tensor, "network rows"]

# Of the median deviation of a component.
_NEARLY_CONSTANT = 1e-3
# Logits held at one time where positions are read: 16 MiB in single precision.
_LOGITS = 2**22


@dataclass(frozen=True)
class Training:
    """How two-layer networks are trained.

    Attributes:
        hidden: width of the hidden layer.
        learning_rate: Adam's.
        passes: over the rows.
        batch_size: rows in a step.
        seed: of the weights and of the order of rows.
    """

    hidden: int
    learning_rate: float
    passes: int
    batch_size: int
    seed: int

    @classmethod
    def checked(
        cls, hidden: object, learning_rate: object, passes: object, batch_size: object, seed: object
    ) -> "Training":
        """The settings that a user gave, NumPy's numbers too.

        Args:
            hidden: width of the hidden layer.
            learning_rate: Adam's.
            passes: over the rows.
            batch_size: rows in a step.
            seed: of the weights and of the order of rows.

        Returns:
            The settings.

        Raises:
            ProbeError: for what is no number of its kind.
        """
        return cls(
            check_whole("hidden", hidden, 1),
            check_positive("learning_rate", learning_rate),
            check_whole("passes", passes, 1),
            check_whole("batch_size", batch_size, 1),
            check_seed(seed),
        )


class Networks:
    """Two-layer networks side by side: each learns labels of its own from the same activations.

    Features are standardised by the moments of the first ones seen. Adam, cross-entropy. All
    randomness comes from one generator on the CPU, so that a seed means the same on any device.

    Args:
        first: the first activations that are seen.
        n_networks: how many.
        n_classes: labels of each.
        settings: of their training.
    """

    def __init__(self, first: Rows, n_networks: int, n_classes: int, settings: Training) -> None:
        hidden = settings.hidden
        self._generator = torch.Generator().manual_seed(settings.seed)
        deviation, self._mean = torch.std_mean(first, dim=0, correction=0)
        # What is nearly constant among the first may vary later: it counts as others do.
        median = deviation.median()
        usual = torch.where(median > 0, median, 1.0)
        self._deviation = torch.where(deviation > _NEARLY_CONSTANT * median, deviation, usual)
        d = first.shape[1]

        def drawn(*shape: int, fan_in: int) -> Tensor:
            bound = fan_in**-0.5
            values = torch.rand(*shape, generator=self._generator, dtype=torch.float64)
            weights: Tensor = ((2 * values - 1) * bound).to(first).requires_grad_()
            return weights

        self._in = drawn(d, n_networks * hidden, fan_in=d)
        self._in_bias = drawn(n_networks * hidden, fan_in=d)
        self._out = drawn(n_networks, hidden, n_classes, fan_in=hidden)
        self._out_bias = drawn(n_networks, 1, n_classes, fan_in=hidden)
        self.weights = [self._in, self._in_bias, self._out, self._out_bias]
        self._optimizer = torch.optim.Adam(self.weights, lr=settings.learning_rate)

    def logits(self, rows: Rows) -> Float[Tensor, "network rows classes"]:
        """What the networks make of activations.

        Args:
            rows: not standardised yet.
        """
        return self._logits(self._standardised(rows))

    def _standardised(self, rows: Rows) -> Rows:
        return (rows.to(self._mean) - self._mean) / self._deviation

    def _logits(self, rows: Rows) -> Float[Tensor, "network rows classes"]:
        hidden = functional.relu(torch.addmm(self._in_bias, rows, self._in))
        hidden = rearrange(hidden, "rows (network h) -> network rows h", network=len(self._out))
        return torch.baddbmm(self._out_bias, hidden, self._out)

    def learn(self, rows: Rows, labels: Labels, settings: Training, passes: int) -> None:
        """Passes of Adam over the rows, each in a new random order.

        Args:
            rows: activations.
            labels: of each network.
            settings: of the training.
            passes: so many, whatever the settings say.
        """
        rows = self._standardised(rows)
        for _ in range(passes):
            order = torch.randperm(len(rows), generator=self._generator).to(rows.device)
            for chosen in order.split(settings.batch_size):
                logits = rearrange(self._logits(rows[chosen]), "network rows c -> (network rows) c")
                # Summed over networks, so that each learns as it would alone.
                loss = functional.cross_entropy(
                    logits, labels[:, chosen].flatten(), reduction="sum"
                ) / len(chosen)
                self._optimizer.zero_grad()
                loss.backward()
                self._optimizer.step()


class TwoLayerProbe(PositionProbe):
    """How well a two-layer ReLU network reads the position: "two_layer", with mae and r2.

    One class per position, after Chi et al. 2023 and Haviv et al. 2022. Every batch given to
    `update` is learned in `passes` passes of Adam and dropped. The position predicted is the
    median of the network's distribution over positions, which is what a mean absolute error asks
    for (so r2, taken on the same prediction, is a little below its best). A second network beside
    the first learns the shuffled labels.

    Args:
        hidden: width of the hidden layer.
        learning_rate: Adam's.
        passes: how often each batch is learned.
        batch_size: activations in a step.
        seed: of the weights, the order, the permutations and the bootstrap.
        n_resamples: of the bootstrap over held-out sequences.
    """

    name = "two_layer"

    def __init__(
        self,
        *,
        hidden: int = 128,
        learning_rate: float = 1e-2,
        passes: int = 3,
        batch_size: int = 512,
        seed: int = 0,
        n_resamples: int = 1000,
    ) -> None:
        super().__init__(seed=seed, n_resamples=n_resamples)
        self._settings = Training.checked(hidden, learning_rate, passes, batch_size, self.seed)

    def _fit(self, activations: Tensor) -> None:
        # Streams run under no_grad or inference_mode, whose tensors autograd refuses.
        with torch.inference_mode(False), torch.enable_grad():
            rows = rearrange(upcast(activations), "batch pos d -> (batch pos) d")
            require_finite(rows.sum())
            if not self.n_fitted:
                self._networks = Networks(rows.clone(), 2, len(self.positions), self._settings)
            labels = self._classes(len(activations)).to(rows.device)
            self._networks.learn(rows, labels, self._settings, self._settings.passes)

    def _classes(self, batch: int) -> Labels:
        """Class indices: of the true positions, and of the shuffled ones."""
        classes = torch.searchsorted(self.positions, self._labels(batch))
        return rearrange(classes, "network batch pos -> network (batch pos)")

    def _score(self, activations: Tensor) -> None:
        rows = rearrange(upcast(activations), "batch pos d -> (batch pos) d")
        # Logits of all activations would grow with the square of the length.
        at_once = max(1, _LOGITS // (2 * len(self.positions)))
        below = torch.cat([self._below_median(some) for some in rows.split(at_once)], dim=1)
        median = self.positions[below.clamp(max=len(self.positions) - 1)]
        labels = self._labels(len(activations))
        error = rearrange(median, "c (batch pos) -> c batch pos", pos=labels.shape[-1]) - labels
        self._errors.update(error.double(), error.double())

    def _below_median(self, rows: Rows) -> Int[Tensor, "network rows"]:
        """How many positions lie below the median of what each network says."""
        with torch.no_grad():
            logits = self._networks.logits(rows)
        require_finite(logits)
        return (logits.softmax(dim=-1).cumsum(dim=-1) < 0.5).sum(dim=-1).cpu()

    def _fitted(self) -> Sequence[np.ndarray]:
        return [weight.detach().cpu().numpy() for weight in self._networks.weights]

    def _merge_fit(self, other: "TwoLayerProbe") -> None:
        raise ProbeError(
            "two-layer probes cannot be merged before evaluate(): gradient descent leaves no sums "
            "to add; give all sequences to fit on to one probe"
        )
