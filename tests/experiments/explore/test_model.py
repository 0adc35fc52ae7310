"""What the page offers can be taken, moved and read."""

import pytest

import nope_interp as ni
from experiments.codes.position_code import NAMES
from experiments.explore.model import model
from experiments.explore.moving import move
from experiments.explore.playground import Playground
from experiments.explore.reading import read
from experiments.heads.prompts import prose
from experiments.loaded import LoadedModel
from experiments.variants.config import ProbingConfig
from experiments.variants.variants import ModelVariant
from nope_interp.pretrained.spec import ModelSpec
from nope_interp.tasks.registry import make_answer_task
from tests.experiments.explore.states import changing, state
from tests.small_models import model as small_model

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_condition_that_is_offered_can_be_taken(llama: Playground) -> None:
    offered = model(llama).conditions
    assert {name.partition(":")[0] for name in offered} == {"rotary"}
    assert {name.split(":")[1].split("=")[0] for name in offered} == {
        *("none", "constant", "shuffled", "keep_highest", "drop_highest", "band")
    }
    for name in offered:
        assert read(llama, changing(positions=name)).difference is not None


def test_a_model_without_positions_offers_no_condition(embedded: Playground) -> None:
    assert model(embedded).conditions == []


def test_prompts_are_prose_that_the_model_reads(playground: Playground) -> None:
    found = model(playground)
    assert len(found.prompts) >= 4
    for prompt in found.prompts:
        assert playground.tokens(prompt).shape[1] <= playground.most_tokens
    assert prose(found.prompts[0]) > 0.9
    assert 60 < len(found.prompts[0]) < 200


def test_pairs_have_one_number_of_tokens_and_differ(playground: Playground) -> None:
    found = model(playground).pairs
    assert found
    for clean, corrupted in found:
        assert playground.tokens(clean).shape == playground.tokens(corrupted).shape
        assert clean != corrupted


def test_every_code_and_site_that_is_offered_can_be_asked(embedded: Playground) -> None:
    found = model(embedded)
    assert found.codes == [*NAMES]
    for site in found.sites:
        asked = {"code": "mean residual", "layer": 1, "site": site, "moves": {"9": 12, "12": 9}}
        moved = move(embedded, state(found.prompts[0][:30], move=asked))
        assert max(map(max, moved.patterns)) > 0, site


def test_numbers_are_the_models(playground: Playground) -> None:
    found, cfg = model(playground), playground.model.cfg
    assert (found.layers, found.heads) == (cfg.n_layers, cfg.n_heads)
    assert found.name == playground.variant.name
    assert "at most 1 GiB" in found.kept


@pytest.mark.parametrize("name", ["reversal", "copy-cmc"])
def test_a_tasks_model_is_asked_examples_of_its_task(name: str) -> None:
    task = make_answer_task(name, training_lengths=[3, 4], test_lengths=[])
    built = small_model(d_vocab=task.tokenizer.d_vocab, n_ctx=task.n_tokens(4)).eval()
    variant = ModelVariant(
        name="tiny",
        kind="trained",
        model=built,
        tokenizer=task.tokenizer,
        sources=(task.source(), task.uniform_source()),
        positions="none",
        spec=ModelSpec("tiny", "cpu"),
    )
    playground = Playground(LoadedModel(variant, ProbingConfig()))
    found = model(playground)
    assert found.prompts
    assert all("<begin>" not in prompt and "<end>" not in prompt for prompt in found.prompts)
    shown = read(playground, state(found.prompts[0]))
    assert len(shown.before.predictions) == min(10, task.tokenizer.d_vocab)
    assert isinstance(playground.model, ni.HookedTransformer)
