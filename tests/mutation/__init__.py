"""Mutants of the rules: each small wrong change to `durably.core` must be noticed by a test of tests/unit/core.

mutants         every small wrong change that can be made to a module
bench           runs the tests against one mutant after the other
equivalent      the mutants that no test can notice, and why
__main__        `python -m tests.mutation`
"""
