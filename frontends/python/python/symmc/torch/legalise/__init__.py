"""Legalise: rewrites of graphs into operators that symmc imports, without a change of what they compute."""
