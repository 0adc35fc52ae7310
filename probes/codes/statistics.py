"""Taking position codes away from the activations at one site, each by itself, the others kept.

With statistics over the sequences fitted on, an activation at position t is

    x = p_bar + c(t) + m(t) + r

* p(t): mean over sequences; p_bar: its mean over positions;
* c(t): the least-squares fit of p(t) - p_bar by t and 1/m, m = t + 1, the code "smooth trend",
  of which the count of Kazemnejad et al. 2023 (Theorem 1) is one;
* m(t): what is left of p(t) - p_bar, the code "irregular part" (p(t) itself: Dong et al. 2024);
* r: the deviation from the positional mean. The variance of the activation that it is part of is
  the code "variance" (Chi et al. 2023), its correlation between positions "similarity" (Zuo et al.
  2025).

The decomposition and the formulas of the interventions are our own.
"""

from collections.abc import Callable, Collection

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from probes.code_names import CODES, IRREGULAR, SMOOTH
from probes.codes.correlations import correlation, require_determined, turning
from probes.codes.filter import CodeFilter, log_variance
from probes.errors import ProbeError
from probes.shapes import PerPosition, PositionalVectors, Positions
from probes.streaming import StreamingFit, few_at_a_time, require_finite, upcast

# What every intervention is: [batch pos d_model] to the same.
Intervention = Callable[[Tensor], Tensor]

# Sequences whose deviations are kept, for controls that mix them in.
_EXAMPLES = 8
# The steepest line by which the spread of log variance at a position is brought to the common one.
_STEEPEST = 10.0
# A deviation smaller than this share of a number is the rounding of float32.
_ROUNDING = 1e-6


class CodeStatistics(StreamingFit):
    """All that taking codes away needs to know of the activations at one site, in constant memory.

    By position the mean activation [pos d_model] and the mean log variance; between positions the
    centred products of either [pos pos]. Sums are float64 and merge by the
    pairwise formula of Chan, Golub and LeVeque (1983); a batch's own products are taken about its
    own mean in the precision it comes in (half precision is raised to float32). They lie on the
    CPU, wherever activations are; what is made from them follows the activations it is given.

    p(t) errs by the mean of n deviations, and activations without mean codes hold that error at
    each position: new positional vectors of 1/n of the deviation's variance. Fit on so many
    sequences that this is nothing beside the codes taken away.

    Fed with `update` as every probe; `merge` adds what another machine saw. It evaluates nothing:
    score what `kept` gives with the probes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._means = torch.zeros(0)  # [pos d]
        self._products = torch.zeros(0)  # [pos pos], centred
        self._log_variance = torch.zeros(0)  # [pos 1], the mean
        self._log_products = torch.zeros(0)  # [pos pos], centred
        self._examples = torch.zeros(0)  # [example pos d], activations of the first sequences

    def _fit(self, activations: Tensor) -> None:
        activations = upcast(activations)
        means = activations.mean(dim=0)
        require_finite(means)
        products = torch.zeros((), dtype=torch.float64)
        logs = []
        for some in few_at_a_time(activations):
            centred = some - means
            products = products + (centred @ centred.mT).sum(dim=0, dtype=torch.float64).cpu()
            logs.append(log_variance(some).cpu())
        log_means, log_products = _moments(torch.cat(logs))
        self._keep_examples(activations)
        self._add(len(activations), means.double().cpu(), products, log_means, log_products)

    def _merge_fit(self, other: "CodeStatistics") -> None:
        self._keep_examples(other._examples)
        held = other._means, other._products, other._log_variance, other._log_products
        self._add(other.n_fitted, *held)

    def _keep_examples(self, activations: Tensor) -> None:
        """The first sequences, however they were cut into batches and shards."""
        if not len(self._examples):
            self._examples = activations[:_EXAMPLES].to("cpu", copy=True)
        elif len(self._examples) < _EXAMPLES:
            more = activations[: _EXAMPLES - len(self._examples)].to(self._examples)
            self._examples = torch.cat([self._examples, more])

    def _add(
        self, n: int, means: Tensor, products: Tensor, log_means: Tensor, log_products: Tensor
    ) -> None:
        if not self.n_fitted:
            self._means, self._products = torch.zeros_like(means), torch.zeros_like(products)
            self._log_variance = torch.zeros_like(log_means)
            self._log_products = torch.zeros_like(log_products)
        counts = self.n_fitted, n
        self._means, self._products = _merged(
            counts, (self._means, self._products), (means, products)
        )
        self._log_variance, self._log_products = _merged(
            counts, (self._log_variance, self._log_products), (log_means, log_products)
        )

    def positional_vectors(self) -> PositionalVectors:
        """p(t), the mean at each position.

        Returns:
            [pos d_model] (float64).

        Raises:
            ProbeError: before 2 sequences.
        """
        if self.n_fitted < 2:
            raise ProbeError(
                f"position codes were fitted on {self.n_fitted} sequences, and one sequence cannot "
                "tell position from content: give at least 2 to update(), better some hundreds"
            )
        return self._means

    def among(self, chosen: Positions, numbers: Positions | None = None) -> "CodeStatistics":
        """The same statistics, of some of the positions alone.

        Args:
            chosen: `[pos]`, rising indices into the positions fitted on.
            numbers: `[pos]`, which positions these are, where those of several runs were given
                side by side: one may come twice. None for the numbers fitted on.

        Returns:
            As if only activations there had been given.

        Raises:
            ProbeError: for fewer than 2 of them, and before 2 sequences.
        """
        self.positional_vectors()  # refuses one sequence
        found = CodeStatistics()
        found._adopt(self.d_model, self.positions[chosen])
        found.positions = found.positions if numbers is None else numbers
        found.n_fitted = self.n_fitted
        found._means, found._examples = self._means[chosen], self._examples[:, chosen]
        found._products = self._products[chosen][:, chosen]
        found._log_variance = self._log_variance[chosen]
        found._log_products = self._log_products[chosen][:, chosen]
        return found

    def deviation_squares(self) -> PerPosition:
        """The mean square length of r at each position.

        Returns:
            [pos] (float64).

        Raises:
            ProbeError: before 2 sequences.
        """
        self.positional_vectors()  # refuses one sequence
        return self._products.diagonal() / (self.n_fitted - 1)

    def noise_along(self, functions: Float[Tensor, "pos k"]) -> float:
        """The sum of squares that p(t) would have along functions of the position by chance.

        Args:
            functions: of mean 0 over positions; of orthonormal ones it is a squared length.

        Returns:
            In the activations' units squared, summed over components and functions.

        Raises:
            ProbeError: before 2 sequences.
        """
        return float(self._along(functions).trace()) / (self.n_fitted - 1) / self.n_fitted

    def freedom_along(self, functions: Float[Tensor, "pos k"]) -> float:
        """The degrees of freedom of the squared length whose expectation is `noise_along`.

        It is a sum of squares that vary together. Its degrees of freedom are those of the
        chi-square variable of the same mean and variance (Satterthwaite 1946), with deviations that
        vary between components as the few examples kept do, alike at all positions.

        Args:
            functions: as in `noise_along`.

        Returns:
            Their number, up to k times d_model; 0 where activations do not vary.

        Raises:
            ProbeError: before 2 sequences.
        """
        along, deviations = self._along(functions), self.example_deviations().double()
        between = einsum(deviations, deviations, "a pos d, b pos d -> a b pos")
        apart = ~torch.eye(len(deviations), dtype=torch.bool)
        unlike = float(between[apart].square().mean())
        if not unlike or not (along != 0).any():
            return 0.0
        # Of deviations from the mean over n sequences: that mean holds a part of each.
        squares = float(self.deviation_squares().mean())
        of_components = min(squares**2 / unlike, float(self.d_model))
        return float(along.trace() ** 2 / along.square().sum()) * max(of_components, 1.0)

    def _along(self, functions: Float[Tensor, "pos k"]) -> Float[Tensor, "k k"]:
        self.positional_vectors()  # refuses one sequence
        functions = functions.to(self._products)
        return functions.mT @ self._products @ functions

    def variance_between(self) -> tuple[float, float, float]:
        """How far mean log variances of activations lie apart, and how far they would by chance.

        Returns:
            Two sums of squares over positions, in nats squared, and the degrees of freedom of the
            second (Satterthwaite 1946). A level that the positions of a sequence share counts in
            neither: it tells no position.

        Raises:
            ProbeError: before 2 sequences.
        """
        self.positional_vectors()  # refuses one sequence
        mean, products = self._log_variance, self._log_products
        apart = products - products.mean(dim=0)
        apart = apart - apart.mean(dim=1, keepdim=True)
        chance = float(apart.trace()) / (self.n_fitted - 1) / self.n_fitted
        freedom = float(apart.trace() ** 2 / apart.square().sum()) if apart.any() else 0.0
        return float((mean - mean.mean()).square().sum()), chance, freedom

    def noise(self) -> float:
        """What p(t) - p_bar would vary by, summed over positions, if nothing knew its position.

        The squared error of the means of n deviations at each position, less that of p_bar.

        Returns:
            In the activations' units squared, summed over components, too.
        """
        of_rests = self._products.trace() - self._products.sum() / len(self._products)
        return float(of_rests) / (self.n_fitted - 1) / self.n_fitted

    def examples(self) -> Float[Tensor, "example pos d_model"]:
        """The first few sequences fitted on.

        Returns:
            [example pos d_model] (float32).
        """
        return self._examples

    def example_deviations(self) -> Float[Tensor, "example pos d_model"]:
        """r, what the positional vectors leave, of the first few sequences fitted on.

        Returns:
            [example pos d_model] (float32).

        Raises:
            ProbeError: before 2 sequences.
        """
        return self._examples - self.positional_vectors().to(self._examples)

    def mean_codes(self) -> dict[str, PositionalVectors]:
        """c(t) and m(t): p(t) - p_bar split by the regression on (t, 1/m).

        Returns:
            "smooth trend" and "irregular part", [pos d_model] each (float64).

        Raises:
            ProbeError: before 2 sequences.
        """
        vectors = self.positional_vectors()
        vectors = vectors - vectors.mean(dim=0)
        t = self.positions.to(vectors)
        terms = torch.stack([t, 1 / (t + 1)], dim=-1)
        terms = terms - terms.mean(dim=0)
        trend = terms @ (torch.linalg.pinv(terms) @ vectors)
        return {SMOOTH: trend, IRREGULAR: vectors - trend}

    def kept(self, codes: Collection[str], permuted: Positions | None = None) -> CodeFilter:
        """The intervention that keeps these of `CODES` and takes the others away.

        With `permuted` the kept codes are permuted: position t gets the mean code of position
        permuted[t], its law of variance, and its correlations with the others. They are as large as
        they were, and tell the wrong position.

        Args:
            codes: names of codes, none to all of them.
            permuted: [pos], an order of the positions; None leaves the kept codes where they are.

        Returns:
            What takes activations [batch pos d_model] of this site and gives them back changed.

        Raises:
            ProbeError: for unknown codes, for `permuted` that is no order of the positions, before
                2 sequences, and where correlations change but the sequences do not determine them.
        """
        for code in codes:
            if code not in CODES:
                raise ProbeError(f"no position code {code!r}: the codes are {', '.join(CODES)}")
        removed = torch.zeros_like(self.positional_vectors())
        order = torch.arange(len(removed)) if permuted is None else permuted
        _require_order(order, len(removed))
        for name, vectors in self.mean_codes().items():
            removed += vectors - vectors[order] if name in codes else vectors

        def changed(name: str, change: Callable[[Tensor | None], Tensor]) -> Tensor | None:
            if name not in codes:
                return change(None).float()
            return None if permuted is None else change(permuted).float()

        return CodeFilter(
            means=self._means.float(),
            removed=removed.float(),
            whitening=changed("similarity", self.whitening),
            variance_map=changed("variance", self.variance_map),
        )

    def whitening(self, order: Positions | None) -> Float[Tensor, "pos pos"]:
        """The lower-triangular map that gives the deviations of all positions the same correlation,
        or each position those of another.

        R, the correlation between positions with the identity mixed in, has Cholesky factor L; R',
        R in that order or, without one, with its mean off the diagonal everywhere, has L'. L' L^-1
        takes deviations divided by their root mean square at each position from R to R'. Both have
        eigenvalues of at least the identity's weight: R' is R, or R averaged over all orders.

        Args:
            order: for each position the index of the one whose correlations it gets, no index
                twice; None gives all the same one.

        Returns:
            [pos pos] (float64), for deviations of these positions.

        Raises:
            ProbeError: where the sequences do not determine correlations.
        """
        pos = len(self._products)
        require_determined(self.n_fitted, self.d_model, pos)
        # Where all sequences have the same activation, there is no deviation to take anything from.
        rounding = _ROUNDING * self.n_fitted**0.5 * torch.linalg.vector_norm(self._means, dim=-1)
        own, scale = correlation(self._products, rounding)
        level = (own.sum() - own.trace()) / (pos * (pos - 1))
        same = level + (1 - level) * torch.eye(pos).to(own)
        return turning(own, same if order is None else own[order][:, order]) / scale

    def variance_map(self, order: Positions | None) -> Float[Tensor, "slope_intercept pos"]:
        """The line in log variance that takes each position's normal law to a common one, or to
        that of another position.

        With mean mu_t and deviation sigma_t at position t: mu + sigma/sigma_t (log v - mu_t), mu
        the mean of mu_t and sigma the root mean square of sigma_t; sigma/sigma_t is 10 at most. It
        is the optimal transport between normal laws. To another's law it goes by the common one,
        and back along the other's line.

        Args:
            order: `[pos]`, for each position the index of the one whose law it gets; None gives all
                the common one.

        Returns:
            The slope and the intercept, in nats, of each position's line.
        """
        mean = self._log_variance[:, 0]
        square = self._log_products.diagonal() / self.n_fitted
        deviation = square.clamp(min=_ROUNDING**2).sqrt()
        common = deviation.square().mean().sqrt()
        # Where activations hardly differ in variance, held-out activations that do are no outliers
        # of that law.
        slope = common / deviation.clamp(min=common / _STEEPEST)
        intercept = mean.mean() - slope * mean
        if order is not None:
            slope, intercept = slope / slope[order], (intercept - intercept[order]) / slope[order]
        return torch.stack([slope, intercept])


def _merged(
    counts: tuple[int, int], held: tuple[Tensor, Tensor], more: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Means and centred products of the sequences held and of more (Chan et al. 1983)."""
    n, m = counts
    (means, products), (new_means, new_products) = held, more
    step, share = new_means - means, m / (n + m)
    return means + step * share, products + new_products + n * share * (step @ step.mT)


def _moments(
    x: Float[Tensor, "seq pos"],
) -> tuple[Float[Tensor, "pos 1"], Float[Tensor, "pos pos"]]:
    """The mean at each position, and the products of what is left, summed over sequences."""
    means = x.mean(dim=0)
    left = x - means
    return means[:, None], left.mT @ left


def _require_order(order: Positions, n: int) -> None:
    if not torch.equal(order.sort().values, torch.arange(n)):
        raise ProbeError(
            f"permuted is {order.tolist()}, no order of {n} positions: give each of 0 to {n - 1} "
            "once"
        )
