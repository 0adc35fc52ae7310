"""Examples of a task in the tokens of a Hugging Face tokenizer, for models that read those."""

from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from nope_interp.errors import UserError
from nope_interp.tasks.answers import AnswerTask
from nope_interp.tasks.examples import Examples


def retokenized(task: AnswerTask, examples: Examples, tokenizer: Any) -> Examples:
    """The same prompts and answers, in the same order, as `tokenizer` writes them.

    Each row is the tokenizer's begin token (`bos_token`), where it has one, the prompt, the answer
    with what stands between them in the task's text, the end token (`eos_token`), and padding.
    Prompt and answer are encoded apart, so that no token is part of both; a tokenizer that marks
    the start of every text (SentencePiece's) marks the answer's, too.

    Args:
        task: the one that made the examples.
        examples: of any lengths.
        tokenizer: a transformers tokenizer.

    Raises UserError for a tokenizer without an end token.
    """
    if tokenizer.eos_token_id is None:
        raise UserError("the tokenizer has no end token to end answers with: set its eos_token.")
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    rows, prompt_lengths = [], []
    for prompt, answer in task.text(examples):
        asked = begin + tokenizer.encode(prompt, add_special_tokens=False)
        given = tokenizer.encode(task.joiner + answer, add_special_tokens=False)
        rows.append(torch.tensor([*asked, *given, tokenizer.eos_token_id]))
        prompt_lengths.append(len(asked))
    # What fills the ends comes after all that is looked at.
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    tokens = pad_sequence(rows, batch_first=True, padding_value=pad)
    return Examples(tokens, torch.tensor(prompt_lengths), torch.tensor([len(row) for row in rows]))
