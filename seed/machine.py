"""Facts about the machine and the software of a run: what config.yaml records and `sprout doctor` prints."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

from packaging.requirements import Requirement

DISTRIBUTION = "sprout-rl"
PACKAGES = ("torch", "triton", "transformers", "numpy", "numba", "safetensors", "gymnasium", "pydantic")
CPU_FEATURES = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "neon", "asimd", "sve")


def description() -> str:
    """One `name: value` a line."""
    return "\n".join(f"{name}: {value}" for name, value in facts().items())


def facts() -> dict[str, str]:
    """Versions, git revision, machine and threads."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "sprout": installed(DISTRIBUTION) or "not installed",
        "git": git_revision() or "no repository",
        "python": platform.python_version(),
        **{name: installed(name) or "not installed" for name in PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, "
        f"{torch.get_num_threads()} threads",
        "cpu": cpu_name(),
        "cpu features": " ".join(cpu_features()) or "none known",
        "gpus": ", ".join(gpus) or "none",
    }


def installed(package: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_revision() -> str | None:
    """Revision of the repository this package was installed from, with a + when its files were changed."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)
        revision = git("rev-parse", "--short=12", "HEAD")
        return f"{revision}+" if git("status", "--porcelain", "--untracked-files=no") else revision
    except (OSError, subprocess.SubprocessError):
        return None


def extras() -> dict[str, list[str]]:
    """Packages of each optional extra that are not installed."""
    missing: dict[str, list[str]] = {}
    names = metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    for requirement in map(Requirement, requires(DISTRIBUTION) or ()):
        for name in names:
            marker = requirement.marker
            if marker and marker.evaluate({"extra": name}) and not marker.evaluate({"extra": ""}):
                absent = installed(requirement.name) is None
                missing.setdefault(name, []).extend([requirement.name] if absent else [])
    return missing


def cpu_name() -> str:
    """The processor's own name where Linux tells it."""
    return next(
        (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")),
        platform.processor() or "unknown",
    )


def cpu_features() -> list[str]:
    """Vector extensions that matter here."""
    flags = next((line for line in _cpuinfo() if line.startswith(("flags", "Features"))), "")
    present = set(flags.partition(":")[2].split())
    return [name for name in CPU_FEATURES if name in present]


def _cpuinfo() -> list[str]:
    file = Path("/proc/cpuinfo")
    return file.read_text().splitlines() if file.is_file() else []
