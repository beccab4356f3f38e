"""Loads a run's configuration: YAML recipe, `extends`, dotted overrides, then the method's own fields.

    config = load_config("quickstart", ["train.lr=1e-5", "objective.name=grpo"])

Every user error is one line that names the key, the value and what would be right.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from sprout.seed.methods import method_patch
from sprout.seed.schema import Config

__all__ = ["Config", "config_from", "dump_config", "load_config", "recipe_names", "with_method"]


def load_config(source: str | Path | None = None, overrides: Iterable[str] = ()) -> Config:
    """The configuration of `source` (a YAML file or the name of a shipped recipe; None: all defaults).

    `overrides` are `section.field=value` with YAML values. Raises FileNotFoundError for a missing recipe and
    ValueError (one line) for anything else that is wrong.
    """
    values = _read_recipe(source, ()) if source is not None else {}
    pairs = [_parse_override(text) for text in overrides]
    for key, value in pairs:
        _set(values, key, value)
    patch = method_patch(str(_get(values, "objective.name", "seed")))
    for key, value in pairs:
        if key in patch and patch[key] != value:
            raise ValueError(f"{key} = {value!r}: objective.name = {_get(values, 'objective.name', 'seed')} "
                             f"sets it to {patch[key]!r}; drop the override or choose another method")
    return config_from(_patched(values, patch))


def with_method(config: Config, name: str) -> Config:
    """The same run under another method: only `objective.name` and the method's own fields change."""
    return config_from(_patched(config.model_dump(), {"objective.name": name, **method_patch(name)}))


def config_from(values: Mapping[str, Any]) -> Config:
    """Validates nested plain values. Raises ValueError with one line naming the full dotted key."""
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        raise ValueError(_one_line(error)) from None
    for name in (config.objective.name, *config.compare):
        method_patch(name)
    return config


def dump_config(config: Config) -> str:
    """YAML text that `load_config` reads back to an equal configuration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def recipe_names() -> list[str]:
    """Names of the shipped recipes; sub-folders are part of the name (`paper/alfworld-qwen2.5-3b`).

    A file that begins with an underscore is only there to be extended.
    """
    root = Path(str(files("sprout.seed"))) / "recipes"
    recipes = (path for path in root.rglob("*.yaml") if not path.name.startswith("_"))
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in recipes)


def _recipe_path(source: str | Path, beside: Path | None) -> Path:
    shipped = Path(str(files("sprout.seed"))) / "recipes" / f"{source}.yaml"
    neighbours = [beside / source, beside / f"{source}.yaml"] if beside else []
    candidates = [*neighbours, Path(source), shipped]
    for path in candidates:
        if path.is_file():
            return path
    near = difflib.get_close_matches(str(source), recipe_names(), n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; shipped: {', '.join(recipe_names()) or 'none'}"
    raise FileNotFoundError(f"no recipe {str(source)!r}: neither a file nor a shipped recipe{hint}")


def _read_recipe(source: str | Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """Nested values of a recipe over those of the recipe it extends."""
    path = _recipe_path(source, above[-1].parent if above else None).resolve()
    if path in above:
        raise ValueError(f"{path}: extends itself through {' -> '.join(p.name for p in above)}")
    try:
        values = yaml.safe_load(path.read_text()) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: a recipe is a mapping of sections, found {type(values).__name__}")
    parent = values.pop("extends", None)
    return _merge(_read_recipe(parent, (*above, path)), values) if parent else values


def _merge(base: dict[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _patched(values: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    result = deepcopy(dict(values))
    for key, value in patch.items():
        _set(result, key, value)
    return result


def _parse_override(text: str) -> tuple[str, Any]:
    key, found, value = text.partition("=")
    if not found or not key.strip():
        raise ValueError(f"override {text!r}: write section.field=value")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        raise ValueError(f"override {text!r}: {value!r} is not a YAML value; quote it") from None
    if key.strip() == "compare" and isinstance(parsed, str):
        parsed = [parsed]
    return key.strip(), parsed


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, leaf = key.split(".")
    node = values
    for section in sections:
        child = node.get(section)
        node[section] = dict(child) if isinstance(child, Mapping) else {}
        node = node[section]
    node[leaf] = value


def _get(values: Mapping[str, Any], key: str, default: Any) -> Any:
    node: Any = values
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return default
        node = node[part]
    return node


def _one_line(error: ValidationError) -> str:
    """The first problem of a validation, as one line: key, value, what it should be."""
    first = error.errors(include_url=False)[0]
    location = [str(part) for part in first["loc"]]
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if first["type"] == "extra_forbidden":
        return _unknown_key(location)
    if not location:
        return message
    return f"{_dotted(location)} = {first['input']!r}: {' '.join(message.split())}"


def _dotted(location: Sequence[str]) -> str:
    """The key as the user writes it: pydantic also lists the branch of a union that failed."""
    names: list[str] = []
    fields: Mapping[str, Any] = Config.model_fields
    for part in location:
        if part not in fields and not part.isdigit():
            continue
        names.append(part)
        kind = fields[part].annotation if part in fields else None
        fields = kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}
    return ".".join(names)


def _unknown_key(location: Sequence[str]) -> str:
    key, leaf, siblings = ".".join(location), location[-1], ".".join(location[:-1])
    known = list(_all_keys())
    here = [name for name in known if name.rpartition(".")[0] == siblings]
    near = [name for name in known if name.rpartition(".")[2] == leaf]
    near = near or difflib.get_close_matches(key, here, n=1)
    near = near or difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    return f"{key}: no such key; did you mean {near[0]}?"


def _all_keys() -> Iterator[str]:
    for name, field in Config.model_fields.items():
        yield name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from (f"{name}.{leaf}" for leaf in field.annotation.model_fields)
