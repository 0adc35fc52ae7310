"""SCAN: commands and the actions that they mean (Lake and Baroni 2018, arXiv 1711.00350).

The grammar has 20,910 commands, which are all made here. `length` is the number of actions: the
length split of Kazemnejad et al. 2023 trains on up to 25 and tests on 26 to 48. Not every number
of actions has a command.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor

from nope_interp.tasks.answers import AnswerTask, Problem
from nope_interp.tasks.token_grid import GAP

Phrase = tuple[tuple[str, ...], tuple[str, ...]]

_VERBS = ("walk", "look", "run", "jump")
_DIRECTIONS = ("left", "right")
# As the paper's code writes them, in place of I_WALK and I_TURN_LEFT.
_ACTIONS = {word: word.capitalize() for word in (*_VERBS, *_DIRECTIONS)}
_SYMBOLS = (*_ACTIONS, *_ACTIONS.values())
_FRAME = "Solve: turn opposite around twice thrice and after [SEP]"
_LONGEST_TRAINING = 25


def commands() -> list[Phrase]:
    """All commands of the grammar, each with its actions, as words."""
    once = list(_verb_phrases())
    sentences = [
        (words + times, actions * count)
        for times, count in (((), 1), (("twice",), 2), (("thrice",), 3))
        for words, actions in once
    ]
    pairs = [
        ((*words, joint, *other_words), _in_order(joint, actions, other_actions))
        for words, actions in sentences
        for joint in ("and", "after")
        for other_words, other_actions in sentences
    ]
    return sentences + pairs


def _verb_phrases() -> Iterator[Phrase]:
    for verb in (*_VERBS, "turn"):
        act = () if verb == "turn" else (_ACTIONS[verb],)
        if act:
            yield (verb,), act
        for direction in _DIRECTIONS:
            turn = (_ACTIONS[direction],)
            yield (verb, direction), turn + act
            yield (verb, "opposite", direction), turn + turn + act
            yield (verb, "around", direction), (turn + act) * 4


def _in_order(joint: str, first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return first + second if joint == "and" else second + first


@cache
def _by_length() -> dict[int, tuple[Tensor, Tensor]]:
    """For each number of actions the ids of all its commands, with gaps behind, and of actions."""
    ids = {word: index for index, word in enumerate((*_SYMBOLS, *_FRAME.split()))}
    every = commands()
    longest = max(len(words) for words, _ in every)
    found: dict[int, list[tuple[list[int], list[int]]]] = {}
    for words, actions in every:
        row = [ids[word] for word in words] + [GAP] * (longest - len(words))
        found.setdefault(len(actions), []).append((row, [ids[action] for action in actions]))
    return {
        length: (torch.tensor([row for row, _ in rows]), torch.tensor([acts for _, acts in rows]))
        for length, rows in sorted(found.items())
    }


class ScanTask(AnswerTask):
    """ "Solve: jump left twice and walk [SEP]" and "Left Jump Left Jump Walk".

    All commands of a length are equally likely. Training draws all lengths alike; that of
    `scan-natural`, as the paper's, all commands alike, so that there are more of longer ones.
    """

    variants = ("scan", "scan-natural")
    symbols = _SYMBOLS
    frame = _FRAME

    def __init__(self, name: str | None = None, **lengths: Any) -> None:
        self.possible_lengths = every = tuple(_by_length())
        self.training_lengths = [length for length in every if length <= _LONGEST_TRAINING]
        self.test_lengths = [length for length in every if length > _LONGEST_TRAINING]
        super().__init__(name, **lengths)

    def weight(self, length: int) -> int:
        return len(_by_length()[length][0]) if self.name == "scan-natural" else 1

    def problem(self, n: int, length: int, generator: Generator) -> Problem:
        words, actions = _by_length()[length]
        chosen = torch.randint(len(words), (n,), generator=generator)
        return self.row("Solve:", words[chosen], "[SEP]"), actions[chosen]


TASKS = (ScanTask,)
