"""`sprout doctor`: versions, machine, back ends of every op, environments, extras, models and recipes."""

from __future__ import annotations

from importlib import import_module

import torch
from rich.console import Console
from rich.table import Table

from sprout.engine.terminal import PlainConsole
from sprout.kernels import dispatch
from sprout.kernels.linear import multiplies
from sprout.seed.config import recipe_names
from sprout.seed.envs import known_environments
from sprout.seed.machine import extras, facts
from sprout.seed.policy import SHIPPED, model_folder


def print_report(console: Console | None = None) -> None:
    """Everything a bug report needs; takes no measurements and changes nothing."""
    console = console or PlainConsole()
    lines = {**facts(), "bfloat16": _bfloat16(), "native module": _native(), **_contents()}
    for name, value in lines.items():
        console.print(f"{name:14} {value}", soft_wrap=True)
    console.print(_ops())


def _bfloat16() -> str:
    return "this CPU has units for it" if multiplies(torch.bfloat16) else "this CPU multiplies it in float32"


def _native() -> str:
    try:
        isa: str = import_module("sprout.kernels._native").ISA
    except ImportError as error:
        return f"missing ({error}); reinstall without SPROUT_NO_NATIVE"
    return f"built; this CPU runs its {isa} code"


def _contents() -> dict[str, str]:
    models = [name for name in SHIPPED if (model_folder(name) / "config.json").is_file()]
    missing = {name: f"lacks {', '.join(packages)}" for name, packages in extras().items() if packages}
    return {
        "environments": ", ".join(sorted(known_environments())),
        "models": ", ".join(models) or "none",
        "recipes": ", ".join(recipe_names()),
        "extras": "; ".join(f"{name} {what}" for name, what in missing.items()) or "complete",
    }


def _ops() -> Table:
    table = Table(title="ops", title_justify="left")
    for heading in ("op", "device", "runs on", "cannot run on"):
        table.add_column(heading)
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    for status in dispatch.available(devices):
        why = "; ".join(f"{name}: {reason}" for name, reason in status.unavailable.items())
        table.add_row(status.op, status.device, status.backend or "-", why)
    return table
