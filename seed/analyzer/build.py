"""The analyzer of a name, from the configuration."""

from __future__ import annotations

from typing import Any

from sprout.engine.chat import ChatFormat
from sprout.engine.generator import Generator
from sprout.seed.analyzer import Analyzer
from sprout.seed.analyzer.given import ScriptedAnalyzer, StaticAnalyzer
from sprout.seed.analyzer.policy import PolicyAnalyzer
from sprout.seed.analyzer.prompt import instructions_of
from sprout.seed.analyzer.server import OpenAIAnalyzer
from sprout.seed.schema import Config


def build_analyzer(
    kind: str, config: Config, chat: ChatFormat, generator: Generator, environment: Any = None
) -> Analyzer:
    """The analyzer `kind` for episodes of the class `environment` (None: of no registered environment).

    Raises ValueError for one that the environment does not support.
    """
    section = config.analyzer
    if kind == "scripted":
        return ScriptedAnalyzer(environment, chat, terminal_observation=section.terminal_observation)
    if kind == "static":
        return StaticAnalyzer(section.static_path, chat, environment)
    if kind == "policy":
        return PolicyAnalyzer(
            generator,
            chat,
            instructions_of(environment),
            max_new_tokens=section.max_new_tokens,
            max_context_tokens=section.max_context_tokens or config.rollout.max_context_tokens,
            terminal_observation=section.terminal_observation,
        )
    assert kind == "openai", f"no analyzer {kind!r}"
    if section.base_url is None or section.model is None:
        raise ValueError("an OpenAI analyzer needs analyzer.base_url and analyzer.model")
    return OpenAIAnalyzer(
        section.base_url,
        section.model,
        chat,
        instructions_of(environment),
        max_new_tokens=section.max_new_tokens,
        concurrency=section.concurrency,
        retries=section.retries,
        terminal_observation=section.terminal_observation,
    )
