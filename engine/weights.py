"""Model folders in the Hugging Face layout, in and out.

    config.json  generation_config.json  tokenizer files
    model.safetensors, or above 5 GB model-0000i-of-0000n.safetensors with model.safetensors.index.json

Weights are read tensor by tensor into the decoder's parameters, so loading never holds a second copy.
Tied models carry no `lm_head.weight`. Of a decoder with LoRA only the adapter is stored (`engine.lora`).
"""

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sprout.engine import parallel
from sprout.engine.files import fresh_folder, swap_folder
from sprout.engine.lora import CONFIG_FILE, PREFIX, WEIGHTS_FILE, is_adapter, write_lora_config
from sprout.engine.model import Decoder, ModelConfig, RopeTable

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
GENERATION_FILE = "generation_config.json"
MAX_SHARD_BYTES = 5 * 10**9
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)


def load_model(
    folder: str | Path, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> Decoder:
    """The decoder stored in a model folder, with its weights in `dtype` on `device`.

    Raises FileNotFoundError or ValueError, naming the file, for a folder that lacks something, a damaged
    file, an architecture the decoder does not compute, tensors that do not fit config.json, and a tokenizer
    with more tokens than the embedding has rows.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} does not exist: give the folder of a model, with its config.json")
    decoder = empty_decoder(read_config(folder), device, dtype)
    read_weights(decoder, folder)
    _check_vocabulary(folder, decoder.config.vocab_size)
    return decoder


def read_config(folder: Path) -> ModelConfig:
    """The model that the config.json of a folder describes; same errors as `load_model`."""
    file = folder / "config.json"
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist: a model folder needs a config.json")
    content = _json(file)
    if "model_type" not in content:
        raise ValueError(f"{file} has no model_type: copy or download it again")
    try:
        return ModelConfig.from_hf(content)
    except (ValueError, StrictDataclassError) as error:
        raise ValueError(f"{file}: {' '.join(str(error).split())}") from error


def empty_decoder(config: ModelConfig, device: str | torch.device, dtype: torch.dtype) -> Decoder:
    """A decoder whose weights are allocated and not yet set."""
    with torch.device("meta"):
        decoder = Decoder(config).to(dtype)
    decoder.to_empty(device=device)
    decoder.rope = RopeTable(config).to(device)  # computed, not read; and in fp32 whatever the weights are
    return decoder


@torch.no_grad()
def read_weights(decoder: Decoder, folder: str | Path) -> None:
    """Fill the stored parameters of `decoder` from a model folder; same errors as `load_model`."""
    folder = Path(folder)
    parameters = _stored_parameters(decoder)
    missing = set(parameters)
    for file in _adapter_files(folder) if decoder.lora else _weight_files(folder):
        with _opened(file) as stored:
            for name in stored.keys():  # noqa: SIM118 (a safetensors file is no mapping)
                if name in parameters:
                    _fill(parameters[name], stored.get_tensor(name), name, file)
                    missing.discard(name)
                else:
                    _check_surplus(decoder, name, stored, file)
    if missing:
        first = sorted(missing)[0]
        raise ValueError(
            f"{folder} lacks {len(missing)} of {len(parameters)} tensors, first {first}: "
            "its weights and its config.json do not belong together"
        )


@torch.no_grad()
def copy_parameters(decoder: Decoder, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Fill the parameters of `decoder` from named tensors in memory; `source` is named in errors.

    Raises ValueError for a tensor that is missing or has another shape.
    """
    for name, parameter in decoder.named_parameters():
        if name not in tensors:
            raise ValueError(f"{source} lacks {name}: its weights and its config do not belong together")
        _fill(parameter, tensors[name], name, source)


def save_model(decoder: Decoder, folder: str | Path, tokenizer_folder: str | Path | None = None) -> None:
    """Write `decoder` as a model folder that transformers loads; an older model folder there is replaced.

    tokenizer_folder: model folder whose tokenizer files (and generation_config.json, if any) are copied.
    The folder appears whole or not at all; every rank must call it. Raises FileExistsError rather than
    replace something else.
    """
    folder = Path(folder)
    models = [name for name in ("config.json", CONFIG_FILE) if (folder / name).is_file()]
    if folder.exists() and any(folder.iterdir()) and not models:
        raise FileExistsError(f"{folder} holds something that is not a model: choose another folder")
    tensors = _collected(decoder)
    if not parallel.is_main():
        return parallel.barrier()
    temporary = fresh_folder(folder)
    try:
        if decoder.lora:
            write_lora_config(decoder.lora, temporary)
            _write_shard(tensors, temporary / WEIGHTS_FILE)
        else:
            _write_configs(decoder, temporary)
            _write_weights(tensors, temporary)
        if tokenizer_folder is not None:
            copy_tokenizer(Path(tokenizer_folder), temporary)
        previous = swap_folder(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(previous, ignore_errors=True)
    parallel.barrier()


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer files and generation_config.json of one model folder to another.

    Code that they name for others to load is left out.
    """
    if not (source / "tokenizer.json").is_file():
        raise FileNotFoundError(f"{source / 'tokenizer.json'} does not exist: give a folder with a tokenizer")
    for name in (*TOKENIZER_FILES, GENERATION_FILE):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    settings = target / "tokenizer_config.json"
    if settings.is_file() and "auto_map" in _json(settings):
        settings.write_text(json.dumps(_without_code(_json(settings)), indent=2) + "\n")


def cut_shards(tensors: Mapping[str, Tensor], max_bytes: int) -> list[list[str]]:
    """Names in order, cut wherever a shard would pass `max_bytes`; a larger tensor gets its own shard."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor.nbytes
    return shards


def weight_bytes(decoder: Decoder) -> int:
    """Size of the decoder's weights on disk."""
    return sum(p.numel() * decoder.dtype.itemsize for p in _stored_parameters(decoder).values())


def _stored_parameters(decoder: Decoder) -> dict[str, Tensor]:
    """What a model folder of this decoder holds, by the names in its files."""
    named = dict[str, Tensor](decoder.named_parameters())
    if decoder.lora is None:
        return named
    return {PREFIX + name: parameter for name, parameter in named.items() if is_adapter(name)}


def _adapter_files(folder: Path) -> list[Path]:
    if not (folder / WEIGHTS_FILE).is_file():
        raise FileNotFoundError(f"{folder} has no {WEIGHTS_FILE}: copy the adapter again")
    return [folder / WEIGHTS_FILE]


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, all present."""
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    if not (folder / INDEX_FILE).is_file():
        raise FileNotFoundError(
            f"{folder} has no {SINGLE_FILE} and no {INDEX_FILE}: convert it to safetensors"
        )
    weight_map = _json(folder / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(f"{folder / INDEX_FILE} has no weight_map: download or export the model again")
    odd = [name for name in weight_map.values() if not isinstance(name, str) or Path(name).name != name]
    if odd:
        raise ValueError(
            f"{folder / INDEX_FILE} names {odd[0]!r}, which is no file of this folder: download it again"
        )
    files = [folder / name for name in sorted(set(weight_map.values()))]
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(
                f"{file} does not exist but the index names it: copy or download that shard"
            )
    return files


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as stored:
            yield stored
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged ({error}): copy, download or export it again") from error


def _fill(parameter: Tensor, stored: Tensor, name: str, file: Path) -> None:
    if stored.shape != parameter.shape:
        raise ValueError(
            f"{file}: {name} is {tuple(stored.shape)} but config.json asks for {tuple(parameter.shape)}: "
            "its weights and its config.json do not belong together"
        )
    if not stored.dtype.is_floating_point:
        raise ValueError(f"{file}: {name} is stored as {stored.dtype}: use an unquantized checkpoint")
    parallel.assign(parameter, stored)


def _check_surplus(decoder: Decoder, name: str, stored: Any, file: Path) -> None:
    """Accept a stored tensor without a parameter only where it carries no information of its own."""
    if name.endswith("rotary_emb.inv_freq"):
        return
    if name != "lm_head.weight":
        raise ValueError(f"{file} holds {name}, which the model of config.json does not have")
    head = stored.get_tensor(name)
    embedding = decoder.model.embed_tokens.weight
    same = head.shape == embedding.shape and torch.equal(_stored_embedding(file), head)
    if not same:
        raise ValueError(
            f"{file}: lm_head.weight differs from the embedding although config.json ties them: "
            "set tie_word_embeddings to false in config.json"
        )


def _stored_embedding(file: Path) -> Tensor:
    name = "model.embed_tokens.weight"
    for candidate in _weight_files(file.parent):
        with _opened(candidate) as stored:
            if name in stored.keys():  # noqa: SIM118
                return stored.get_tensor(name)
    raise ValueError(f"{file.parent} lacks {name}: its weights and its config.json do not belong together")


def _check_vocabulary(folder: Path, vocab_size: int) -> None:
    file = folder / "tokenizer.json"
    if not file.is_file():
        return
    from tokenizers import Tokenizer

    largest = max(Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= vocab_size:
        raise ValueError(
            f"{file} has token id {largest} but the embedding has {vocab_size} rows: "
            "use the tokenizer of this model, or resize the embedding"
        )
    if 2 * (largest + 1) < vocab_size:
        warnings.warn(
            f"{file} has {largest + 1} tokens for {vocab_size} rows of the embedding: is it this model's?",
            stacklevel=2,
        )


def _write_configs(decoder: Decoder, folder: Path) -> None:
    from transformers import AutoConfig, GenerationConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = AutoConfig.for_model(**_without_code(decoder.config.hf))
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    config.dtype = decoder.dtype
    config.save_pretrained(folder)
    GenerationConfig.from_model_config(config).save_pretrained(folder)


def _collected(decoder: Decoder) -> dict[str, Tensor]:
    """All weights in the precision they are computed with; the tensors of other ranks than 0 are empty."""
    collected = {}
    for name, parameter in _stored_parameters(decoder).items():
        tensor = parallel.full(parameter.detach()).to(decoder.dtype)
        collected[name] = tensor.cpu() if parallel.is_main() else tensor.new_empty(0)
    return collected


def _write_weights(tensors: Mapping[str, Tensor], folder: Path) -> None:
    shards = cut_shards(tensors, MAX_SHARD_BYTES)
    if len(shards) == 1:
        _write_shard(tensors, folder / SINGLE_FILE)
        return
    weight_map = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_shard({name: tensors[name] for name in names}, folder / file)
        weight_map.update(dict.fromkeys(names, file))
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")


def _write_shard(tensors: Mapping[str, Tensor], file: Path) -> None:
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, file, metadata={"format": "pt"})
    # safetensors makes the file readable by its owner only, whatever the umask says.
    config = next(file.parent.glob("*config.json"))
    file.chmod(config.stat().st_mode)


def _without_code(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration that does not name classes to be imported from elsewhere."""
    return {key: value for key, value in config.items() if key not in ("auto_map", "custom_pipelines")}


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON ({error}): copy, download or export it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object: copy, download or export it again")
    return content
