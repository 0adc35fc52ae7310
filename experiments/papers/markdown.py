"""The registry as a page to read."""

from experiments.papers.registry import PAPERS


def papers_markdown() -> str:
    """`docs/papers.md`: every paper, its claims and their tests.

    `python -m experiments.papers.markdown > docs/papers.md` writes it again.
    """
    parts = [
        "# Papers and their claims",
        "",
        "Written by `python -m experiments.papers.markdown` from the registry that "
        "`nope-interp reproduce` runs.",
        "`nope-interp reproduce --list --json` says which of these claims a finished run of yours "
        "shows.",
        "",
        "Claims are in our words. The text of most papers could not be read here, so each claim "
        "says how sure its source is,",
        "and published numbers marked as recalled are no numbers to fail against. A claim comes "
        "down to one number, with a",
        "95% interval over seeds unless it names something else, and is *reproduced* where the "
        "whole interval lies within the bounds of its test.",
        "It is *contradicted* where the interval lies outside of the bounds, and *uncertain* where "
        "it crosses one.",
        "It is *not measured* where the run lacked what it needs, and *not testable here* where "
        "the",
        "number cannot be had. All tests, bounds and tolerances are ours.",
    ]
    for found in PAPERS.values():
        parts += ["", f"## {found.name}", "", f"{found.citation}.", ""]
        parts += [f"Run it with `nope-interp reproduce {found.name}`: {found.n_seeds} seeds; "]
        parts[-1] += f"{found.default}. Towards the paper's own sizes: {found.paper_sizes}."
        options = " ".join(f"`--{size}`" for size in found.sizes)
        parts += [f"Multiplied by {options}." if options else "", ""]
        for claim in found.claims:
            parts += [f"### {found.name}: {claim.id}", "", claim.says, ""]
            entries = {
                "Source": f"{claim.source} ({claim.status})",
                "Measured": claim.measure,
                "Reproduced where": claim.test,
                "Published": claim.published,
                "Differs from the paper": claim.differs,
                "Needs": claim.needs,
            }
            parts += [f"- {name}: {text.rstrip('.')}." for name, text in entries.items() if text]
            parts += [""]
        parts.pop()
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(papers_markdown(), end="")
