"""Linear transformers: attention, exact constructions, trained models and what they learned.

The modules that train (``model``, ``training``, ``unrolling``) need torch; the others do not.
"""
