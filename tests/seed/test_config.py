"""Recipes, overrides, methods and the one-line errors of a wrong configuration."""

import pytest
import yaml

from sprout.seed.config import config_from, dump_config, load_config, with_method
from sprout.seed.methods import METHODS


def test_yaml_round_trip():
    config = load_config(None, ["train.lr=1e-5", "env.options.rooms=3", "compare=[grpo]"])
    assert config.train.lr == 1e-5
    assert config_from(yaml.safe_load(dump_config(config))) == config


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("train.learning_rate=1", ["train.learning_rate", "no such key", "did you mean train."]),
        ("train.updats=1", ["train.updats", "did you mean train.updates?"]),
        ("objective.grad_clip=1", ["objective.grad_clip", "grad_clip?"]),
        ("trian.lr=1", ["trian", "did you mean train?"]),
        ("train.lr=fast", ["train.lr", "'fast'", "valid number"]),
        ("train.updates=1.5", ["train.updates", "1.5", "integer"]),
        ("train.updates=true", ["train.updates", "number, not true/false"]),
        ("train.updates=-1", ["train.updates", "-1", "greater than or equal to 0"]),
        ("train.rollouts_per_task=0", ["train.rollouts_per_task", "greater than or equal to 1"]),
        ("train.rows_per_micro_batch=0", ["train.rows_per_micro_batch", "greater than or equal to 1"]),
        ("objective.beta=.nan", ["objective.beta", "finite"]),
        ("objective.opd_mask=some", ["objective.opd_mask", "'response' or 'action_only'"]),
        ("train.betas=[0.9]", ["train.betas", "Field required"]),
        ("rollout.temperature=0", ["rollout.temperature", "greedy"]),
        ("rollout.max_context_tokens=8", ["rollout.max_response_tokens", "no room"]),
        ("rollout.skill_template=hint", ["rollout.skill_template", "{skill}"]),
        ("analyzer.kind=none", ["objective.lambda_opd", "needs skills"]),
        ("objective.name=sedd", ["objective.name", "no method 'sedd'", "grpo"]),
        ("objective.skill_source=null", ["objective.skill_source", "objective.name = seed", "'own'"]),
        ("train.optimizer_steps_per_update=1000", ["train.optimizer_steps_per_update", "128 rollouts"]),
        ("train.lr", ["write section.field=value"]),
    ],
)
def test_errors_are_one_line_and_name_the_key(override, parts):
    with pytest.raises(ValueError) as caught:
        load_config(None, [override])
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_recipes_extend_one_another(tmp_path):
    (tmp_path / "base.yaml").write_text("train: {lr: 1.0e-3, updates: 7}\nenv: {options: {a: 1, b: 2}}\n")
    (tmp_path / "top.yaml").write_text("extends: base\ntrain: {updates: 9}\nenv: {options: {b: 3}}\n")
    config = load_config(tmp_path / "top.yaml", ["train.updates=11"])
    assert (config.train.lr, config.train.updates) == (1e-3, 11)
    assert config.env.options == {"a": 1, "b": 3}


def test_recipe_that_extends_itself_is_an_error(tmp_path):
    (tmp_path / "a.yaml").write_text("extends: b\n")
    (tmp_path / "b.yaml").write_text("extends: a\n")
    with pytest.raises(ValueError, match="extends itself"):
        load_config(tmp_path / "a.yaml")


def test_missing_and_malformed_recipes(tmp_path):
    with pytest.raises(FileNotFoundError, match="no recipe 'quikstart'"):
        load_config("quikstart")
    (tmp_path / "bad.yaml").write_text("train: [unclosed\n")
    with pytest.raises(ValueError, match="not YAML") as caught:
        load_config(tmp_path / "bad.yaml")
    assert "\n" not in str(caught.value)
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ValueError, match="mapping of sections"):
        load_config(tmp_path / "list.yaml")


def test_a_method_changes_only_its_own_fields():
    seed = load_config(None, ["objective.lambda_opd=0.3"])
    for name, patch in METHODS.items():
        other = with_method(seed, name)
        assert other.objective.name == name
        before, after = seed.model_dump(), other.model_dump()
        changed = {f"{s}.{k}" for s in before if isinstance(before[s], dict)
                   for k in before[s] if before[s][k] != after[s][k]}
        assert changed <= {*patch, "objective.name"}
    assert with_method(seed, "grpo").objective.lambda_opd == 0
    assert with_method(seed, "beta0").objective.lambda_opd == 0.3


def test_config_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load_config().train.lr = 1.0
