import random
import subprocess
import sys

import pytest

from sprout.engine.rng import derive_key


def test_keys_fit_int64_and_seed_environments():
    keys = [derive_key(seed, update, 3, 1, 2) for seed in range(20) for update in range(20)]
    assert all(0 <= key < 2**63 for key in keys)
    assert len(set(keys)) == len(keys)


def test_order_type_and_grouping_of_parts_matter():
    variants = [(1, 2), (2, 1), (12,), (1, 2, 0), ("1", 2), ("12",), ("1", "2"), (-1, 2), ()]
    assert len({derive_key(*parts) for parts in variants}) == len(variants)


def test_same_key_in_another_process_and_after_other_draws():
    key = derive_key(7, "collect", 41, 3, 12)
    random.random()
    code = "from sprout.engine.rng import derive_key; print(derive_key(7, 'collect', 41, 3, 12))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(other.stdout) == key == derive_key(7, "collect", 41, 3, 12)


def test_bits_are_balanced():
    ones = sum(derive_key(0, i).bit_count() for i in range(2000)) / 2000
    assert abs(ones - 31.5) < 0.5


@pytest.mark.parametrize("part", [1.0, True, None, (1, 2)])
def test_other_types_are_refused(part):
    with pytest.raises(TypeError, match="ints and strings"):
        derive_key(1, part)
