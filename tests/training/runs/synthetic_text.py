"""Synthetic text that a small GPT-2 learns in some hundred steps: every token has a few usual successors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Language:
    """A Markov chain. Its last ``rare`` tokens are never followed to: what holds them is out of the usual text.

    ``surprise`` in 0...1 is the share of tokens that are drawn from all usual ones, whatever came before.
    """

    vocabulary: int
    rare: int
    successors: NDArray[np.int64]  # [usual tokens, successors]
    shares: NDArray[np.float64]  # [successors]: how often each is taken, sums to 1
    surprise: float

    @classmethod
    def drawn(
        cls, rng: np.random.Generator, vocabulary: int = 48, surprise: float = 0.1, branches: int = 4
    ) -> Language:
        rare = vocabulary // 4
        successors = rng.integers(vocabulary - rare, size=(vocabulary - rare, branches))
        shares = 0.5 ** np.arange(branches)
        return cls(vocabulary, rare, successors, shares / shares.sum(), surprise)

    @property
    def usual(self) -> int:
        return self.vocabulary - self.rare

    def rows(self, rng: np.random.Generator, rows: int, tokens: int, surprise: Any = None) -> Tokens:
        """``rows`` sentences of ``tokens`` tokens; ``surprise`` may be given per row."""
        surprise = np.broadcast_to(self.surprise if surprise is None else surprise, rows)
        text = np.empty((rows, tokens), np.int64)
        text[:, 0] = rng.integers(self.usual, size=rows)
        for t in range(1, tokens):
            taken = rng.choice(self.successors.shape[1], size=rows, p=self.shares)
            follows = self.successors[text[:, t - 1], taken]
            text[:, t] = np.where(rng.random(rows) < surprise, rng.integers(self.usual, size=rows), follows)
        return text

    def rare_rows(self, rng: np.random.Generator, rows: int, tokens: int) -> Tokens:
        """Sentences of the tokens that no other text has, a few of them over and over."""
        few = rng.choice(np.arange(self.usual, self.vocabulary), size=3, replace=False)
        return rng.choice(few, size=(rows, tokens))
