"""The mutants are Python, each changes its line, and a seed gives the same ones again."""

from __future__ import annotations

import ast

from tests import mutation


def test_every_mutant_is_python_and_a_change() -> None:
    rooms = list(mutation.COVER)
    sampled = mutation.sample(rooms, seed=7, count=60)
    assert {mutant.path.parts[1] for mutant in sampled} == set(rooms)
    for mutant in sampled:
        assert ast.dump(ast.parse(mutant.source())) != ast.dump(ast.parse(mutant.before)), str(mutant)


def test_a_seed_chooses_the_same_mutants_again() -> None:
    first, again, other = (mutation.sample(["placement"], seed=seed, count=20) for seed in (1, 1, 2))
    assert first == again != other
