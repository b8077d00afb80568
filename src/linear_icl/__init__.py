"""In-context linear regression: what a linear transformer computes, and the solvers it finds."""

__version__ = "0.1.0"
