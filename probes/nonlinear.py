"""A two-layer ReLU probe, after Chi et al. 2023 and Haviv et al. 2022 (details recalled)."""

from collections.abc import Sequence
from typing import Any, no_type_check

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
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


class _Networks:
    """Two-layer networks side by side: each learns labels of its own from the same activations.

    Features are standardised by the moments of the first ones seen. Adam, cross-entropy. All
    randomness comes from one generator on the CPU, so that a seed means the same on any device.
    """

    def __init__(
        self, first: Rows, n_networks: int, n_classes: int, settings: "TwoLayerClassifier"
    ) -> None:
        hidden = settings.hidden
        self._generator = torch.Generator().manual_seed(check_seed(settings.seed))
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
        """Of the rows, which are not standardised yet."""
        return self._logits(self._standardised(rows))

    def _standardised(self, rows: Rows) -> Rows:
        return (rows.to(self._mean) - self._mean) / self._deviation

    def _logits(self, rows: Rows) -> Float[Tensor, "network rows classes"]:
        hidden = functional.relu(torch.addmm(self._in_bias, rows, self._in))
        hidden = rearrange(hidden, "rows (network h) -> network rows h", network=len(self._out))
        return torch.baddbmm(self._out_bias, hidden, self._out)

    def learn(
        self, rows: Rows, labels: Labels, settings: "TwoLayerClassifier", passes: int
    ) -> None:
        """`passes` passes of Adam over the rows, each in a new random order."""
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


class TwoLayerClassifier(ClassifierMixin, BaseEstimator):
    """A classifier with one hidden ReLU layer, trained by Adam on the cross-entropy.

    After Chi et al. 2023 and Haviv et al. 2022, as recalled and not checked: position as a class,
    d -> hidden -> ReLU -> classes. The same seed gives the same bits. `fit` makes `passes` passes
    over the rows, `partial_fit` one pass over the rows it is given.

    Args:
        hidden: width of the hidden layer.
        learning_rate: Adam's.
        passes: over the rows, in `fit`.
        batch_size: rows in a step.
        seed: of the weights and of the order of rows.
    """

    hidden: int
    learning_rate: float
    passes: int
    batch_size: int
    seed: int
    classes_: np.ndarray

    @no_type_check  # scikit-learn wants whatever is given stored as it is
    def __init__(
        self,
        hidden: int = 128,
        learning_rate: float = 3e-3,
        passes: int = 100,
        batch_size: int = 256,
        seed: int = 0,
    ) -> None:
        self.hidden = hidden
        self.learning_rate = learning_rate
        self.passes = passes
        self.batch_size = batch_size
        self.seed = seed

    def fit(self, X: Any, y: Any) -> "TwoLayerClassifier":
        """Fits to X [n d] and class labels y [n], forgetting what was seen before.

        Args:
            X: features [n d].
            y: class labels [n].
        """
        return self._absorb(X, y, None, passes=self.passes, reset=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> "TwoLayerClassifier":
        """One pass over more rows; the first call needs `classes`, all labels there will be.

        Args:
            X: features [n d].
            y: class labels [n].
            classes: [k], needed at the first call.
        """
        first = not hasattr(self, "networks_")
        if first and classes is None:
            raise ProbeError("the first partial_fit needs classes: all labels there will be")
        return self._absorb(X, y, classes, passes=1, reset=first)

    def _absorb(
        self, X: Any, y: Any, classes: Any, *, passes: int, reset: bool
    ) -> "TwoLayerClassifier":
        _check_settings(self)
        X, y = validate_data(self, X, y, reset=reset, dtype=(np.float64, np.float32))
        check_classification_targets(y)
        known = np.unique(y if classes is None else classes) if reset else self.classes_
        unknown = np.setdiff1d(y, known)
        if len(unknown):
            raise ProbeError(f"y holds {unknown[0]!r}, which is not among the classes {known}")
        rows = torch.from_numpy(np.require(X, requirements=["C", "W"]))
        if reset:
            self.classes_ = known
            self.networks_ = _Networks(rows, 1, len(known), self)
        labels = torch.from_numpy(np.searchsorted(known, y))[None]
        with torch.enable_grad():
            self.networks_.learn(rows, labels, self, passes)
        return self

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n classes"]:
        """The probability of each class in `classes_`; rows sum to 1."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=(np.float64, np.float32))
        rows = torch.from_numpy(np.require(X, requirements=["C", "W"]))
        with torch.no_grad():
            logits = self.networks_.logits(rows)[0]
        return logits.double().softmax(dim=-1).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])


def _check_settings(of: TwoLayerClassifier) -> None:
    for name in ("hidden", "passes", "batch_size"):
        check_whole(name, getattr(of, name), 1)
    check_positive("learning_rate", of.learning_rate)


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
        self._settings = TwoLayerClassifier(hidden, learning_rate, passes, batch_size, self.seed)
        _check_settings(self._settings)

    def _fit(self, activations: Tensor) -> None:
        # Streams run under no_grad or inference_mode, whose tensors autograd refuses.
        with torch.inference_mode(False), torch.enable_grad():
            rows = rearrange(upcast(activations), "batch pos d -> (batch pos) d")
            require_finite(rows.sum())
            if not self.n_fitted:
                self._networks = _Networks(rows.clone(), 2, len(self.positions), self._settings)
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
