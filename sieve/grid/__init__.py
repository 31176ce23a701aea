"""From a grid's axes to the candidate frame."""

from sieve.grid.axes import PRECISIONS
from sieve.grid.expand import Grid, expand, require_prices

__all__ = ["PRECISIONS", "Grid", "expand", "require_prices"]
