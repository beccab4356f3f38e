"""tree_attention against torch SDPA: one sequence, and the canonical forest against it unrolled."""

from __future__ import annotations

from functools import partial

import torch

from sprout.bench.case import Phase, Program, Setting
from sprout.bench.measure import Run
from sprout.bench.ops import attention
from sprout.bench.ops.trees import Tree, canonical, causal
from sprout.bench.tracked.sizes import Sizes
from sprout.bench.tracked.summary import OURS, Summary, our_program
from sprout.bench.workload import make_trajectories
from sprout.engine.forest import Forest
from sprout.kernels import tree_attention

SDPA = attention.SDPA
FULL_WORK = 3.5  # forward and backward in units of the forward: 14 FLOPs per pair and element against 4


def causal_ratios(setting: Setting, sizes: Sizes, summary: Summary) -> None:
    """The smallest ratio of each phase, and every cell."""
    phases: dict[Phase, str] = {"forward": "fwd", "full": "full"}
    for phase, name in phases.items():
        cells = {}
        for D in sizes.head_sizes:
            for rows in sizes.causal_rows:
                cell = f"tree_attention_{name}_vs_sdpa_d{D}_r{rows}"
                heads = sizes.width // D
                case = attention.case(setting, causal(rows, setting.device), heads, heads, D)
                programs = {OURS: our_program(case, setting.device), SDPA: case.providers[SDPA]()}
                runs = {name: program.prepare(phase) for name, program in programs.items()}
                cells[cell] = _speedup(cell, runs, sizes.rounds, setting.device, summary)
        summary.ratios |= {f"tree_attention_{name}_vs_sdpa": min(cells.values())} | cells


def forest_ratios(setting: Setting, sizes: Sizes, summary: Summary) -> None:
    """One layer's attention in the dual forward and in the backward of its trained half, all heads alike."""
    D = sizes.head_sizes[0]
    heads = sizes.width // D
    turns = [turn for x in make_trajectories(sizes.forest, vocab_size=2**20) for turn in x.turns]
    forest = Forest.pack(turns, setting.device)
    students, teachers = (canonical(sizes.forest, setting.device, teachers=t) for t in (False, True))
    runs = {
        OURS: partial(_both, *_shared(setting, forest, heads, D)),
        SDPA: partial(_both, *_unrolled(setting, students, teachers, heads, D)),
    }
    speedup = _speedup("canonical forest", runs, sizes.rounds, setting.device, summary)
    depth = (forest.position + 1).double()
    shared = FULL_WORK * depth[: forest.trained].sum() + depth[forest.trained :].sum()
    unrolled = FULL_WORK * students.unrolled_pairs + teachers.unrolled_pairs
    predicted = unrolled / float(shared)
    summary.ratios |= {
        "tree_saving_efficiency": speedup / predicted,
        "tree_saving": speedup,
        "tree_saving_predicted": predicted,
    }


def _shared(setting: Setting, forest: Forest, heads: int, D: int) -> tuple[Run, Run]:
    T = forest.trained
    trunk = tuple(setting.random(T, heads, D) for _ in range(3))
    everything = tuple(setting.random(forest.rows, heads, D, grad=False) for _ in range(2))
    queries = setting.random(forest.rows - T, heads, D, grad=False)
    trained = Program(lambda q, k, v: tree_attention(q, k, v, forest.trained_intervals)[0], trunk)
    scored = Program(
        lambda q, k, v: tree_attention(q, k, v, forest.scored_intervals)[0], (queries, *everything)
    )
    return trained.prepare("full"), scored.prepare("forward")


def _unrolled(setting: Setting, students: Tree, teachers: Tree, heads: int, D: int) -> tuple[Run, Run]:
    programs = [
        attention.unrolled_sdpa(tree, *(setting.random(tree.rows, heads, D) for _ in range(3)))()
        for tree in (students, teachers)
    ]
    return programs[0].prepare("full"), programs[1].prepare("forward")


def _both(trained: Run, scored: Run) -> None:
    trained()
    scored()


def _speedup(part: str, runs: dict[str, Run], rounds: int, device: torch.device, summary: Summary) -> float:
    for run in runs.values():
        run()
    timings, _ = summary.time(part, runs, rounds, device)
    return timings[OURS].speedup_over(timings[SDPA])
