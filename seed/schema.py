"""The typed configuration of a run: one frozen section per subject, every field with its default and bounds.

Where the paper and its released code differ, the field lists both values and the default comes first
(METHOD: SEED, arXiv 2607.14777). Loading, overrides and error messages live in `sprout.seed.config`.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core.core_schema import ValidationInfo

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]


def has_credentials(values: Any) -> bool:
    """Whether a text in (nested) values is an address with a user name or a password: scheme://user:pass@host."""
    if isinstance(values, str):
        return re.match(r"\s*[A-Za-z][\w+.-]*://[^/?#\s]*@", values) is not None
    inner = values.values() if isinstance(values, dict) else values if isinstance(values, list) else ()
    return any(map(has_credentials, inner))


class Section(BaseModel):
    """Frozen; refuses unknown keys, and true/false or a non-finite value where a number is asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_finite_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        kind = str(cls.model_fields[str(info.field_name)].annotation)
        if isinstance(value, bool) and "bool" not in kind and ("int" in kind or "float" in kind):
            raise ValueError("should be a number, not true/false")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("should be a finite number")
        return value


class RunSection(Section):
    name: str = Field(default="run", min_length=1, description="name of the run; its folder is dir/name")
    dir: str = Field(default="runs", description="folder that holds the runs")
    seed: CountOrZero = Field(default=0, description="seed of everything random in the run")
    resume: bool | str = Field(default=False, description="true: latest checkpoint; step-000040: that one")
    stages: tuple[
        Literal["base", "collect", "annotate", "sft", "material", "train", "eval", "compare"], ...
    ] = Field(
        default=("collect", "annotate", "sft", "train", "eval"),
        description="what `sprout run` does, in this order",
    )


class ModelSection(Section):
    path: str = Field(
        default="household-base",
        min_length=1,
        description="HF model folder, GGUF file, household-base or smollm2",
    )
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    enable_thinking: bool | None = Field(default=None, description="given to the chat template; None: not")
    earlier_turns: Literal["template", "as_written"] = Field(
        default="template",
        description="as_written accepts a chat template that rewrites earlier turns (Qwen3 drops their "
        "<think> blocks): the policy goes on seeing the ids it sampled",
    )


class LoraSection(Section):
    """Train adapters beside frozen weights: for models whose optimizer state does not fit."""

    rank: CountOrZero = Field(default=0, description="0 trains all weights")
    alpha: Positive = Field(default=32.0, description="an adapter's output is scaled by alpha / rank")
    targets: tuple[str, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        description="linear layers that get one",
    )


class EnvSection(Section):
    name: str = Field(default="household", min_length=1, description="its entry point")
    max_turns: Count | None = Field(default=None, description="None: the environment's own")
    options: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the environment")
    workers: CountOrZero = Field(
        default=0,
        description="processes that environments run in, on every rank, so that one may die or hang; 0: this "
        "process, without time limits. Results do not depend on it. Lessons are made in this process always",
    )
    step_timeout_s: Positive = Field(default=60.0, description="for one step in a worker")
    reset_timeout_s: Positive = Field(
        default=300.0, description="for one reset in a worker, with what is loaded before the first"
    )


class BaseSection(Section):
    """A base model trained from scratch on its environment's lessons: it stands in for a pretrained one."""

    layers: Count = 4
    hidden_size: Count = 128
    intermediate_size: Count = 384
    heads: Count = 8
    kv_heads: Count = 4
    induction: bool = Field(default=True, description="the first two layers start as induction heads")
    recall_steps: CountOrZero = Field(default=0, description="opening steps, on reports alone")
    recall_reports_per_step: Count = 5
    steps: Count = 900
    episodes_per_step: Count = Field(default=6, description="scripted episodes with skill branches")
    transcripts_per_step: CountOrZero = Field(default=2, description="transcripts with reading questions")
    reports_per_step: CountOrZero = Field(default=2, description="transcripts, surveyed and reported in JSON")
    lr: Positive = 2e-3
    muon_lr: Positive = 0.02
    weight_decay: NonNegative = 0.01
    warmup_fraction: Fraction = 0.02
    final_lr_ratio: Fraction = 0.02
    checkpoint_every: Count = 100
    reading_steps: CountOrZero = Field(default=400, description="closing steps, mostly on transcripts")
    reading_episodes_per_step: CountOrZero = 4
    reading_transcripts_per_step: CountOrZero = 2
    reading_lr_factor: Positive = Field(default=0.6, description="of lr and muon_lr")


class CollectSection(Section):
    tasks: Count = Field(default=180, description="training tasks M of Stage 1")
    rollouts_per_task: Count = Field(default=8, description="rollouts K0 of each task")


class AnalyzerSection(Section):
    kind: Literal["policy", "scripted", "openai", "static", "none"] = "policy"
    stage1: Literal["scripted", "openai"] = Field(default="scripted", description="who annotates Stage 1")
    max_new_tokens: Count = 4096
    max_context_tokens: Count | None = Field(
        default=None, description="prompt and answer of kind policy; None: rollout.max_context_tokens"
    )
    terminal_observation: bool = Field(default=True, description="show what the last action led to")
    static_path: str | None = Field(
        default=None,
        description="YAML or JSON: family or `default` -> skill; None: the environment's static_skills",
    )
    base_url: str | None = Field(default=None, description="OpenAI-compatible server")
    model: str | None = Field(default=None, description="model name on that server")
    concurrency: Count = Field(default=8, description="requests at a time")
    retries: CountOrZero = Field(default=3, description="further attempts of a request, with doubling waits")
    timeout_s: Positive = Field(default=300.0, description="for one request")
    prompt_price: NonNegative = Field(default=0.0, description="per million tokens, for the cost metric")
    completion_price: NonNegative = 0.0
    key_variable: str = Field(default="OPENAI_API_KEY", description="environment variable that holds the key")


class SftSection(Section):
    epochs: CountOrZero = Field(default=3, description="0 skips Stage 1")
    lr: Positive = 5e-6
    muon_lr: Positive = Field(default=0.002, description="of the matrices, with optimizer = muon")
    batch_size: Count = Field(default=8, description="sequences per optimizer step")
    optimizer: Literal["adamw", "muon"] = "adamw"
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    weight_decay: NonNegative = 0.01
    schedule: Literal["constant", "cosine", "linear"] = "cosine"
    warmup_fraction: Fraction = 0.1
    grad_clip: Positive = 1.0
    max_tokens: Count = Field(default=8192, description="a longer pair is left out and counted")
    replay_fraction: Fraction = Field(default=0.0, description="share of a batch from the base's own data")
    holdout_fraction: Fraction = Field(default=0.1, description="share of tasks, not of pairs")


class RolloutSection(Section):
    temperature: NonNegative = 1.0
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_response_tokens: Count = 512
    max_context_tokens: Count = Field(default=4096, description="context and response together")
    context_overflow: Literal["error", "end_episode"] = Field(
        default="error", description="for an episode that outgrows it: stop the run, or end the episode"
    )
    history_layout: Literal["append", "window"] = "append"
    history_turns: CountOrZero = Field(default=5, description="window: past pairs in the prompt")
    skill_placement: Literal["before_action", "after_task"] = "before_action"
    skill_template: str = "hint : {skill}"
    cache_tokens: Count = Field(default=65536, description="size of the paged KV cache, in tokens")
    page_size: Count = 16
    max_episodes: Count = Field(default=64, description="episodes alive at once")


class ObjectiveSection(Section):
    name: str = Field(default="seed", min_length=1, description="a method of `sprout.seed.methods`")
    teacher_policy: Literal["snapshot", "live"] = "snapshot"
    group_statistics: Literal["trajectory", "turn"] = "trajectory"
    advantage_scale: Literal["std", "none"] = "std"
    min_group_std: NonNegative = Field(default=0.0, description="smaller spreads give advantage 0")
    loss_aggregation: Literal["token_mean_global", "token_mean_microbatch", "sequence_mean"] = (
        "token_mean_global"
    )
    opd_mask: Literal["response", "action_only"] = "response"
    opd_invalid_actions: Literal["keep", "drop"] = "keep"
    opd_baseline: Literal["none", "mean"] = "none"
    validity: Literal["format", "admissible"] = "format"
    teacher_context_overflow: Literal["error", "drop_opd"] = "error"
    skill_source: Literal["own", "null", "shuffled"] = "own"
    beta: NonNegative = 5.0
    lambda_opd: NonNegative = 0.01
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: Positive = 0.2
    dual_clip: float = Field(default=3.0, gt=1)
    kl_coef: NonNegative = 0.01
    entropy_coef: NonNegative = 0.001
    skill_kl_coef: NonNegative = Field(default=0.0, description="coefficient of Skill-SD")
    delta_advantage: NonNegative = Field(default=0.0, description="w of OPID: advantage + w * Delta")
    delta_scale: Fraction = Field(default=0.0, description="k of RLSD at the first update")
    delta_scale_updates: Count = Field(default=100, description="updates over which k falls to 0")
    invalid_action_penalty: NonNegative = 0.1

    @field_validator("skill_source", mode="before")
    @classmethod
    def _yaml_null_is_a_source(cls, value: Any) -> Any:
        return "null" if value is None else value


class TrainSection(Section):
    updates: CountOrZero = 150
    tasks_per_update: Count = 16
    rollouts_per_task: Count = 8
    rows_per_micro_batch: Count = 16384
    optimizer_steps_per_update: Count = 1
    turns_per_optimizer_step: Count | None = Field(
        default=None, description="as many steps as the update's turns ask for, in place of a fixed number"
    )
    lr: Positive = 1e-6
    muon_lr: Positive = Field(default=0.002, description="of the matrices, with optimizer = muon")
    optimizer: Literal["adamw", "muon"] = "adamw"
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    weight_decay: NonNegative = 0.01
    grad_clip: Positive = 1.0
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup_updates: CountOrZero = 0
    checkpoint_every: Count = 10
    keep_last: Count = 2
    max_wall_s: Positive | None = Field(default=None, description="stop cleanly after this many seconds")
    activation_checkpointing: bool = False
    reference_offload: bool = Field(
        default=False,
        description="keep the reference model of the KL term in CPU memory; on the device only to score",
    )
    scores_every: CountOrZero = Field(
        default=10,
        description="updates between those whose per-token scores are kept for `sprout report`; the "
        "first and the last are kept too; 0: none",
    )
    skill: Literal["none", "static"] = Field(
        default="none", description="skill in the prompt while training; static: see analyzer.static_path"
    )


class MachineSection(Section):
    """What --dry-run plans for; a run takes the ranks that torchrun gives it."""

    gpus: Count = 1
    memory_gb: Positive | None = Field(default=None, description="of each; None: do not say whether it fits")


class EvalSection(Section):
    select_tasks: CountOrZero = Field(default=128, description="fixed panel for choosing")
    report_tasks: CountOrZero = Field(default=384, description="another fixed panel, for reporting only")
    every: CountOrZero = Field(default=5, description="updates between evaluations; 0: only at the end")
    temperature: NonNegative = Field(default=0.4, description="0 is greedy")
    top_p: float = Field(default=1.0, gt=0, le=1)
    skill: Literal["none", "own", "oracle", "policy", "static"] = Field(
        default="none",
        description="skill in the prompt: written about an episode of the same task by the scripted analyzer "
        "(own) or the policy itself (policy), known to the environment (oracle), from a file (static)",
    )
    teacher: bool = Field(default=False, description="also measure the policy with its own skills")


class Config(Section):
    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    lora: LoraSection = LoraSection()
    env: EnvSection = EnvSection()
    base: BaseSection = BaseSection()
    collect: CollectSection = CollectSection()
    analyzer: AnalyzerSection = AnalyzerSection()
    sft: SftSection = SftSection()
    rollout: RolloutSection = RolloutSection()
    objective: ObjectiveSection = ObjectiveSection()
    train: TrainSection = TrainSection()
    eval: EvalSection = EvalSection()
    machine: MachineSection = MachineSection()
    compare: tuple[str, ...] = Field(default=(), description="methods to train beside this one")

    @model_validator(mode="after")
    def _sections_agree(self) -> Config:
        for problem in self._disagreements():
            raise ValueError(problem)
        return self

    def _disagreements(self) -> list[str]:
        """Every combination of fields that cannot run, as `key: what is wrong, what to change`."""
        rollout, analyzer, objective, train = self.rollout, self.analyzer, self.objective, self.train
        rollouts = train.tasks_per_update * train.rollouts_per_task
        checks = {
            "rollout.max_response_tokens: leaves no room for a prompt; lower it or raise "
            "rollout.max_context_tokens": rollout.max_response_tokens >= rollout.max_context_tokens,
            "rollout.skill_template: must contain {skill}": "{skill}" not in rollout.skill_template,
            "rollout.temperature: 0 (greedy) gives no exploration; set it above 0": rollout.temperature == 0,
            "rollout.cache_tokens: smaller than one episode; raise it to rollout.max_context_tokens or more":
                rollout.cache_tokens < rollout.max_context_tokens,
            f"train.optimizer_steps_per_update: more steps than the {rollouts} rollouts of an update":
                train.optimizer_steps_per_update > rollouts,
            "rollout.cache_tokens: smaller than an analyzer's prompt and answer; raise it to "
            "analyzer.max_context_tokens or more":
                rollout.cache_tokens < (analyzer.max_context_tokens or 0),
            "train.turns_per_optimizer_step: the number of steps is not known beforehand; set "
            "train.schedule=constant":
                train.turns_per_optimizer_step is not None and train.schedule != "constant",
            # What is in the configuration is on disk: no secret may be. The value is not repeated either.
            "analyzer.key_variable: is no name of a variable; give the name, not the key": not re.fullmatch(
                r"[A-Za-z_][A-Za-z0-9_]*", analyzer.key_variable
            ),
            f"analyzer.base_url: holds a user name or password; put the key into {analyzer.key_variable}":
                has_credentials(analyzer.base_url),
            "env.options: an address in it holds a user name or password, and would be stored":
                has_credentials(self.env.options),
            "analyzer.base_url: an OpenAI analyzer needs analyzer.base_url and analyzer.model":
                "openai" in (analyzer.kind, analyzer.stage1) and None in (analyzer.base_url, analyzer.model),
            "objective.lambda_opd: above 0 needs skills; set analyzer.kind or objective.name = grpo":
                objective.lambda_opd > 0 and analyzer.kind == "none" and objective.skill_source != "null",
            "objective.skill_source: shuffled needs at least 2 tasks; raise train.tasks_per_update":
                objective.skill_source == "shuffled" and train.tasks_per_update < 2,
        }
        return [problem for problem, found in checks.items() if found]
