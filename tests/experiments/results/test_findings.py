"""Shares of units that did something, against the formula of Wilson 1927."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.results.findings import share, share_curve

Z = 1.959963984540054


@given(st.data())
def test_shares_have_wilsons_interval(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 200), "n")
    count = data.draw(st.integers(0, n), "count")
    found = share(count, n)
    middle = (count + Z**2 / 2) / (n + Z**2)
    half = Z / (n + Z**2) * np.sqrt(count * (n - count) / n + Z**2 / 4)
    assert (found.value, found.n) == (count / n, n)
    assert (found.ci_low, found.ci_high) == pytest.approx((middle - half, middle + half), abs=1e-9)


def test_none_has_no_share() -> None:
    assert np.isnan(share(0, 0).value)


def test_a_curve_has_the_share_of_each_point() -> None:
    drawn = share_curve("a", np.array([0, 1]), np.array([[1.0, 0], [1, 0], [0, 0]]))
    first, last = share(2, 3), share(0, 3)
    assert drawn.low is not None
    assert drawn.high is not None
    assert drawn.n == 3
    np.testing.assert_allclose(drawn.y, [2 / 3, 0])
    np.testing.assert_allclose(drawn.low, [first.ci_low, last.ci_low])
    np.testing.assert_allclose(drawn.high, [first.ci_high, last.ci_high])
    # Nobody did, of three: that excludes little.
    assert drawn.high[1] > 0.5
