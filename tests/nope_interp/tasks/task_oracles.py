"""What the right answers are, worked out from the text of a prompt in plain Python."""

import re
import string
from collections.abc import Callable

RANKED = string.digits + string.ascii_letters


def spaced(value: int) -> str:
    """As the tasks write numbers: digits apart, and a minus before them."""
    return ("- " if value < 0 else "") + " ".join(str(abs(value)))


def value_of(text: str, **names: int) -> int:
    """Python's own value of an expression whose digits stand apart."""
    return eval(re.sub(r"(?<=\d) (?=\d)", "", text), {}, names)


def between(text: str, before: str, behind: str) -> str:
    assert text.startswith(before)
    assert text.endswith(behind)
    return text[len(before) : len(text) - len(behind)].strip()


def strings(
    verb: str, answer: Callable[[list[str]], list[str]]
) -> Callable[[str], tuple[str, int]]:
    def solve(prompt: str) -> tuple[str, int]:
        symbols = between(prompt, verb, "[SEP]").split()
        return " ".join(answer(symbols)), len(symbols)

    return solve


def one_symbol(times: int) -> Callable[[str], tuple[str, int]]:
    def solve(prompt: str) -> tuple[str, int]:
        symbols = between(prompt, "Copy:", "[SEP]").split()
        assert len(set(symbols)) == 1
        return " ".join(symbols * times), len(symbols)

    return solve


def replacement(prompt: str) -> tuple[str, int]:
    head, _, symbols = between(prompt, "Replace", "[SEP]").partition(" in ")
    # One of the symbols of the prompt may itself be `in`'s neighbour, never the word `in`.
    old, new = head.split(" with ")
    assert old != new
    assert set(symbols.split()) == {old}
    return " ".join(new if s == old else s for s in symbols.split()), len(symbols.split())


def addition(prompt: str) -> tuple[str, int]:
    expression = between(prompt, "Compute", "?")
    operands = expression.replace(" ", "").split("+")
    assert all(str(int(operand)) == operand for operand in operands)
    return f"The answer is {spaced(value_of(expression))} .", max(map(len, operands))


def polynomial(prompt: str) -> tuple[str, int]:
    x, expression = between(prompt, "Evaluate at x =", "?").split(" in ")
    value = value_of(expression, x=value_of(x)) % 10
    return f"The answer is {value} .", expression.count("**")


def summation(prompt: str) -> tuple[str, int]:
    expression = between(prompt, "Compute:", ".")
    assert "0" not in expression
    return f"The answer is {value_of(expression) % 10} .", expression.count("+") + 1


def parity(prompt: str) -> tuple[str, int]:
    bits = between(prompt, "Is the number of 1's even in the sequence", "?")
    ones = bits.count("1")
    return f"The answer is {'No' if ones % 2 else 'Yes'} .", len(value_of(bits))


def sort_single(prompt: str) -> tuple[str, int]:
    items = between(prompt, "Sort the following list [", "] .").split(" , ")
    return f"The sorted list is [ {' , '.join(sorted(items, key=RANKED.index))} ] .", len(items)


def sort_multi(prompt: str) -> tuple[str, int]:
    items = [
        value_of(item) for item in between(prompt, "Sort the following list [", "] .").split(",")
    ]
    assert all(10 <= item <= 9999 for item in items)
    return f"The sorted list is [ {' , '.join(map(spaced, sorted(items)))} ] .", len(items)


def lego_chain(prompt: str) -> tuple[dict[str, int], list[str], str]:
    """Each variable's value, the clauses, and the variable that is asked for."""
    clauses, question = between(prompt, "If", "?").split(" . Then , what is the value of ")
    values: dict[str, int] = {}
    for clause in clauses.split(" , "):
        name, expression = clause.split(" = ")
        assert name not in values
        values[name] = value_of(expression, **values)
    return values, clauses.split(" , "), question


def lego(prompt: str) -> tuple[str, int]:
    values, clauses, question = lego_chain(prompt)
    # The second half of the chain.
    assert 2 * list(values).index(question) >= len(clauses)
    return f"The answer is {'+' if values[question] > 0 else '-'} 1 .", len(clauses)


def scan_actions(command: str) -> list[str]:
    """What a SCAN command means: the interpretation function of Lake and Baroni 2018."""
    if " and " in command:
        first, second = command.split(" and ")
        return scan_actions(first) + scan_actions(second)
    if " after " in command:
        first, second = command.split(" after ")
        return scan_actions(second) + scan_actions(first)
    for word, times in (("twice", 2), ("thrice", 3)):
        if command.endswith(" " + word):
            return scan_actions(command.removesuffix(" " + word)) * times
    verb, *how = command.split()
    act = [] if verb == "turn" else [verb.capitalize()]
    if not how:
        return act
    turn = [how[-1].capitalize()]
    return {
        1: turn + act,
        2: turn * 2 + act if how[0] == "opposite" else (turn + act) * 4,
    }[len(how)]


def scan(prompt: str) -> tuple[str, int]:
    actions = scan_actions(between(prompt, "Solve:", "[SEP]"))
    return " ".join(actions), len(actions)


def pcfg_value(words: list[str]) -> list[str]:
    """The meaning of the expression that `words` begins with, which is taken off it."""
    word = words.pop(0)
    if word[0].isupper():
        symbols = [word]
        while words and words[0][0].isupper():
            symbols.append(words.pop(0))
        return symbols
    x = pcfg_value(words)
    if word in ("append", "prepend", "remove_first", "remove_second"):
        assert words.pop(0) == ","
        y = pcfg_value(words)
        return {"append": x + y, "prepend": y + x, "remove_first": y, "remove_second": x}[word]
    swapped = list(x)
    swapped[0], swapped[-1] = swapped[-1], swapped[0]
    return {
        "copy": x,
        "reverse": list(reversed(x)),
        "shift": [*x[1:], x[0]],
        "echo": [*x, x[-1]],
        "swap_first_last": swapped,
        "repeat": x * 2,
    }[word]


def pcfg(prompt: str) -> tuple[str, int]:
    words = between(prompt, "Solve:", "[SEP]").split()
    n_functions = sum(word[0].islower() for word in words)
    answer = pcfg_value(words)
    assert words == []
    return " ".join(answer), n_functions


def character_addition(prompt: str) -> tuple[str, int]:
    operands = between(prompt, "", "=").split("+")
    assert len(operands[0]) == len(operands[1])
    return str(sum(map(int, operands))), len(operands[0])


def reversal(prompt: str) -> tuple[str, int]:
    letters = between(prompt, "", "=")
    return letters[::-1], len(letters)


def indexing(prompt: str) -> tuple[str, int]:
    letters, query = between(prompt, "", "=").split(",")
    assert len(set(letters)) == len(letters)
    return str(letters.index(query) + 1), len(letters)


def ordering(prompt: str) -> tuple[str, int]:
    letters = between(prompt, "", "=")
    assert len(set(letters)) == len(letters)
    return "".join(sorted(letters)), len(letters)


# From a prompt to its answer and its length.
ORACLES: dict[str, Callable[[str], tuple[str, int]]] = {
    "copy-rsc": one_symbol(1),
    "copy-rsc2x": one_symbol(2),
    "copy-rdc": replacement,
    "copy-cmc": strings("Copy:", lambda x: x),
    "copy-cmc2x": strings("Copy:", lambda x: [*x, "[NEXT]", *x]),
    "reverse-mc": strings("Reverse:", lambda x: x[::-1]),
    "reverse-mc2x": strings("Reverse:", lambda x: [*x[::-1], "[NEXT]", *x[::-1]]),
    "reverse-mcrv": strings("Reverse:", lambda x: [*x[::-1], "[NEXT]", *x]),
    "addition": addition,
    "polynomial": polynomial,
    "sort-single": sort_single,
    "sort-multi": sort_multi,
    "summation": summation,
    "parity": parity,
    "lego": lego,
    "scan": scan,
    "pcfg": pcfg,
    "zuo-addition": character_addition,
    "reversal": reversal,
    "indexing": indexing,
    "ordering": ordering,
    "addition-natural": addition,
    "scan-natural": scan,
}


def addition_steps(prompt: str) -> list[dict[str, str]]:
    a, b = (value_of(part) for part in between(prompt, "Compute", "?").split("+"))
    n_columns = max(len(str(a)), len(str(b)))
    steps, carry = [], 0
    for column in range(n_columns + 1):
        if column == n_columns and not carry:
            break
        digit, other = a // 10**column % 10, b // 10**column % 10
        total = digit + other + carry
        rests = [spaced(x // 10 ** (column + 1)) if column + 1 < n_columns else "" for x in (a, b)]
        steps.append(
            {
                "input": f"{digit} , {other}",
                "computation": f"{digit} + {other} + carry = {spaced(digit + other)} + {carry} = "
                f"{spaced(total)}",
                "output": str(total % 10),
                "variables": f"carry: {total // 10}",
                "remaining": f"{rests[0]} + {rests[1]}".strip(),
            }
        )
        carry = total // 10
    return steps


def polynomial_steps(prompt: str) -> list[dict[str, str]]:
    given, expression = between(prompt, "Evaluate at x =", "?").split(" in ")
    x, terms, steps, so_far = value_of(given), expression.split(" + "), [], 0
    for index, term in enumerate(terms):
        coefficient, degree = (value_of(part) for part in term.split(" * x ** "))
        value = coefficient * x**degree
        before, so_far = so_far, (so_far + value) % 10
        steps.append(
            {
                "input": term,
                "computation": f"{spaced(coefficient)} * {spaced(x)} ** {degree} = "
                f"{spaced(coefficient)} * {spaced(x**degree)}",
                "output": spaced(value),
                "variables": f"sum: {before} + {spaced(value)} = {so_far}",
                "remaining": " + ".join(terms[index + 1 :]),
            }
        )
    return steps


def summation_steps(prompt: str) -> list[dict[str, str]]:
    digits, steps, so_far = between(prompt, "Compute:", ".").split(" + "), [], 0
    for index, digit in enumerate(digits):
        total = int(digit) + so_far
        steps.append(
            {
                "input": digit,
                "computation": f"{digit} + sum = {digit} + {so_far}",
                "output": spaced(total),
                "variables": f"sum: {spaced(total)} = {total % 10}",
                "remaining": " + ".join(digits[index + 1 :]),
            }
        )
        so_far = total % 10
    return steps


def parity_steps(prompt: str) -> list[dict[str, str]]:
    bits = between(prompt, "Is the number of 1's even in the sequence [", "] ?").split(" , ")
    steps = []
    for index, bit in enumerate(bits):
        before, odd = (bits[:end].count("1") % 2 for end in (index, index + 1))
        steps.append(
            {
                "input": bit,
                "computation": f"{bit} ** par = {bit} ** {before}",
                "output": str(odd),
                "variables": f"par: {odd}",
                "remaining": f"[ {' , '.join(bits[index + 1 :])} ]".replace("  ", " "),
            }
        )
    return steps


def sort_steps(prompt: str) -> list[dict[str, str]]:
    items = between(prompt, "Sort the following list [", "] .").split(" , ")
    steps = []
    while items:
        smallest = min(
            items, key=lambda x: int(x.replace(" ", "")) if " " in x else RANKED.index(x)
        )
        first = items.pop(0)
        if smallest != first:
            items[items.index(smallest)] = first
        steps.append(
            {
                "input": first,
                "computation": "The minimum of the unsorted portion",
                "output": smallest,
                "remaining": f"[ {' , '.join(items)} ]".replace("  ", " "),
            }
        )
    return steps


def lego_steps(prompt: str) -> list[dict[str, str]]:
    values, clauses, question = lego_chain(prompt)
    signed = {name: f"{'+' if value > 0 else '-'} 1" for name, value in values.items()}
    steps = []
    for index, clause in enumerate(clauses):
        name, expression = clause.split(" = ")
        sign, operand = expression.split()
        steps.append(
            {
                "input": name,
                "computation": "" if index == 0 else f"{sign} {operand} = {sign} {signed[operand]}",
                "output": signed[name],
                "remaining": " , ".join(clauses[index + 1 :]),
            }
        )
        if name == question:
            break
    return steps


# From a prompt to the parts of its steps.
STEPS: dict[str, Callable[[str], list[dict[str, str]]]] = {
    "addition": addition_steps,
    "polynomial": polynomial_steps,
    "sort-single": sort_steps,
    "sort-multi": sort_steps,
    "summation": summation_steps,
    "parity": parity_steps,
    "lego": lego_steps,
}


def written(steps: list[dict[str, str]], parts: set[str]) -> str:
    """Steps as the minimal template writes them, with some of their parts."""
    marks = {
        "input": "in {}",
        "computation": "comp {}",
        "output": "out {}",
        "variables": "[ {} ]",
        "remaining": "re {}",
    }
    rows = [
        " ".join(
            marks[part].format(step[part]).strip() for part in marks if part in parts & set(step)
        )
        for step in steps
    ]
    return " # ".join(rows)
