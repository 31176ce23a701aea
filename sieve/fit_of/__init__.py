"""One deployment, judged as the engine would judge it: which rules it breaks, whether it fits.

`configure` names the model, the card, the engine and the knobs, and fills in the engine's defaults;
`check` holds the result to every validity rule; `fit` opens its memory ledger; `document` turns
either into a JSON-ready mapping.
"""

from sieve.fit_of.books import StageBook
from sieve.fit_of.configuration import Configuration, configure
from sieve.fit_of.rules import Check, RuleResult, check
from sieve.fit_of.verdict import Fit, document, fit

__all__ = [
    "Check", "Configuration", "Fit", "RuleResult", "StageBook", "check", "configure", "document",
    "fit",
]  # fmt: skip
