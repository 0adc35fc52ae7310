"""Draws for controls: shared by as many sequences in a row as asked, however these are cut."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from probes.codes.draws import Draws


@given(together=st.integers(1, 9), cuts=st.lists(st.integers(1, 7), min_size=1, max_size=6))
def test_neighbours_share_a_draw_and_others_do_not(together: int, cuts: list[int]) -> None:
    draws = Draws((2, 3), torch.Generator().manual_seed(0), together)
    made = [draws.of_next(n) for n in cuts]
    assert all(torch.equal(which.unique(), torch.arange(len(each))) for each, which in made)
    found = torch.cat([each[which] for each, which in made])
    assert found.shape == (sum(cuts), 2, 3)
    which = torch.arange(len(found)) // together
    same = (found[:, None] == found).all(dim=-1).all(dim=-1)
    assert torch.equal(same, which[:, None] == which)


def test_draws_are_those_of_the_generator() -> None:
    made, which = Draws((2, 3), torch.Generator().manual_seed(0)).of_next(20)
    assert torch.equal(which, torch.arange(20))
    assert torch.equal(made, torch.randn((20, 2, 3), generator=torch.Generator().manual_seed(0)))
