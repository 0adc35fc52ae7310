"""The two-layer ReLU network as an estimator of scikit-learn's."""

from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from probes.errors import ProbeError
from probes.nonlinear import Networks, Training


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
        sizes = (self.hidden, self.learning_rate, self.passes, self.batch_size, self.seed)
        settings = Training.checked(*sizes)
        X, y = validate_data(self, X, y, reset=reset, dtype=(np.float64, np.float32))
        check_classification_targets(y)
        known = np.unique(y if classes is None else classes) if reset else self.classes_
        unknown = np.setdiff1d(y, known)
        if len(unknown):
            raise ProbeError(f"y holds {unknown[0]!r}, which is not among the classes {known}")
        rows = torch.from_numpy(np.require(X, requirements=["C", "W"]))
        if reset:
            self.classes_ = known
            self.networks_ = Networks(rows, 1, len(known), settings)
        labels = torch.from_numpy(np.searchsorted(known, y))[None]
        with torch.enable_grad():
            self.networks_.learn(rows, labels, settings, passes)
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
