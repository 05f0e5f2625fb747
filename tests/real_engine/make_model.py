"""Makes a tiny model without weights: `python make_model.py FOLDER CONTEXT_TOKENS`.

Run by vLLM's own interpreter, which has the libraries; vLLM draws the weights itself (`--load-format dummy`).
"""

import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import LlamaConfig, PreTrainedTokenizerFast

END = "<|end|>"
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def main(folder: Path, context_tokens: int) -> None:
    """Train a tokenizer on this file, and write it and the shape of a model."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=600, initial_alphabet=alphabet, special_tokens=[END])
    tokenizer.train_from_iterator([Path(__file__).read_text(encoding="utf-8")], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, bos_token=END, pad_token=END)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    end = fast.convert_tokens_to_ids(END)
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(fast),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=context_tokens,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
    ).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
