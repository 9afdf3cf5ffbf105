"""Keep a language model's configuration, tokenizer and template in an artifact beside its program, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kernelyard_llm.configuration import Experts, LayerConfig, ModelConfig, Rope
from kernelyard_llm.errors import ModelFileError

if TYPE_CHECKING:
    from kernelyard_llm.template import ChatTemplate
    from kernelyard_llm.tokenizer import Tokenizer

KEY = "kernelyard_llm"  # of the module's metadata


@dataclass(frozen=True)
class Description:
    """tokenizer_json: a document of the library `tokenizers`; begin, ends: tokens around texts; chat: a template.

    bytes_per_token: the stored bytes of the weights that each token reads, one row of the embedding left out.
    """

    config: ModelConfig
    tokenizer_json: str
    begin: int | None
    ends: tuple[int, ...]
    chat: str | None
    bytes_per_token: int = 0

    def to_json(self) -> str:
        """Return all of it as text."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Description:
        """Read what `to_json` wrote. Raises: ModelFileError for anything else."""
        try:
            fields: dict[str, Any] = json.loads(text)
            config = fields.pop("config")
            layers = tuple(_layer(each) for each in config.pop("layers"))
            experts = config.pop("experts")
            whole = ModelConfig(layers=layers, experts=None if experts is None else Experts(**experts), **config)
            return cls(config=whole, **{**fields, "ends": tuple(fields["ends"])})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ModelFileError("the description of a language model is damaged", found=str(error)) from error

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer."""
        from kernelyard_llm.tokenizer import Tokenizer

        return Tokenizer(self.tokenizer_json, self.begin, self.ends)

    def template(self, tokenizer: Tokenizer) -> ChatTemplate:
        """Return the chat template."""
        from kernelyard_llm.template import DEFAULT, ChatTemplate

        end = tokenizer.text_of(self.ends[0]) if self.ends else ""
        begin = tokenizer.text_of(self.begin) if self.begin is not None else ""
        return ChatTemplate(self.chat or DEFAULT, bos_token=begin, eos_token=end)


def _layer(fields: dict[str, Any]) -> LayerConfig:
    rope = fields["rope"]
    if rope is not None:
        factors = rope["factors"]
        rope = Rope(**{**rope, "factors": None if factors is None else tuple(factors)})
    return LayerConfig(fields["window"], rope)
