"""Puts a small tokenizer into a Hugging Face cache, so that aiperf needs no network: `python tokenizer.py HF_HOME`.

Run by aiperf's own interpreter, which has the libraries. Its counts are nobody's; only the load matters here.
"""

import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

END = "<|end|>"
REVISION = "0" * 40


def main(home: Path) -> None:
    """Train on this file, and write."""
    folder = home / "hub" / "models--evenload--tiny"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=600, initial_alphabet=alphabet, special_tokens=[END])
    tokenizer.train_from_iterator([Path(__file__).read_text(encoding="utf-8")], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, bos_token=END)
    fast.save_pretrained(folder / "snapshots" / REVISION)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(REVISION, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
