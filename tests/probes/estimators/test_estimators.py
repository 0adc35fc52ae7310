"""scikit-learn's own conformance checks, on every estimator the package has."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from probes.estimators.ridge import RidgeRegressor
from probes.estimators.two_layer import TwoLayerClassifier
from probes.estimators.variance import VarianceRegressor


@parametrize_with_checks(
    [
        RidgeRegressor(),
        # Smaller and shorter than the default, for time; the checks' data are easy.
        TwoLayerClassifier(hidden=32, learning_rate=1e-2, passes=30),
        VarianceRegressor(),
    ]
)
def test_scikit_learn_conformance(estimator, check):
    check(estimator)
