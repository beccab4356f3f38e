"""The analyzer of a name, from the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sprout.engine.chat import ChatFormat
from sprout.engine.generator import Generator
from sprout.seed.analyzer import Analyzer
from sprout.seed.analyzer.given import ScriptedAnalyzer, StaticAnalyzer
from sprout.seed.analyzer.policy import PolicyAnalyzer
from sprout.seed.analyzer.prompt import instructions_of, language_model_instructions
from sprout.seed.analyzer.server import OpenAIAnalyzer, Server
from sprout.seed.schema import AnalyzerSection, Config


def build_analyzer(
    kind: str,
    config: Config,
    chat: ChatFormat,
    generator: Generator,
    environment: Any = None,
    answers: Path | None = None,
) -> Analyzer:
    """The analyzer `kind` for episodes of the class `environment` (None: of no registered environment).

    answers: file in which a server's answers are kept. Raises ValueError for an analyzer that the environment
    does not support.
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
    return OpenAIAnalyzer(
        server_of(section),
        chat,
        language_model_instructions(environment),
        max_new_tokens=section.max_new_tokens,
        terminal_observation=section.terminal_observation,
        answers=answers,
    )


def server_of(section: AnalyzerSection) -> Server:
    """The server that the configuration names. Raises ValueError if it names none."""
    if section.base_url is None or section.model is None:
        raise ValueError("an OpenAI analyzer needs analyzer.base_url and analyzer.model")
    return Server(
        section.base_url,
        section.model,
        section.concurrency,
        section.retries,
        section.timeout_s,
        section.prompt_price,
        section.completion_price,
        section.key_variable,
    )
