"""No test opens a window.

Chosen here and not in the environment, where it would reach the kernels of the notebooks, whose
figures would then not be stored.
"""

import matplotlib

matplotlib.use("agg")
