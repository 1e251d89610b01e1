"""A language model and its tokenizer from a folder, this package's or any of the library's; one line if it is none."""

from pathlib import Path

from torch import nn

from prism.errors import InputError
from prism.lm.data.tokenizer import Tokenizer, check_vocabulary, load_tokenizer
from prism.machine import pick_device


def load_language_model(
    folder: Path, tokenizer: Path | None = None, device: str | None = None
) -> tuple[nn.Module, Tokenizer]:
    """The model, ready to predict, and its tokenizer, which may also be elsewhere.

    Args:
        folder: Of the model.
        tokenizer: Folder or file of the tokenizer; None: the model's folder.
        device: Where the model runs; None: cuda or mps if there is one, else the CPU.
    """
    quiet()
    where = pick_device(device)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: name one that `prism lm train` or save_pretrained wrote")
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json: it is not the folder of a model")
    from transformers import AutoModelForCausalLM

    import prism.lm.hf.model  # noqa: F401 (registers the model)

    try:
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None
    except Exception as error:  # each part of the library has errors of its own for a damaged folder
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{folder} holds no model that can be loaded: {reason}") from None
    found = _tokenizer(folder, tokenizer)
    check_vocabulary(found, model.config.vocab_size)
    return model.eval().to(where), found


def quiet() -> None:
    """Keeps the library's reports off the terminal."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _tokenizer(folder: Path, named: Path | None) -> Tokenizer:
    try:
        return load_tokenizer(folder if named is None else named)
    except InputError as error:
        hint = "" if named is not None else "; name one with --tokenizer"
        raise InputError(f"{error}{hint}") from None
