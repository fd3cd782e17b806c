"""The Trainer of Hugging Face with a GPT-2 that is made here: no weights and no data are
downloaded.
"""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Sentences(Dataset):
    """Random tokens."""

    def __init__(self):
        self.tokens = torch.randint(0, 64, (64, 16), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


if __name__ == "__main__":
    set_seed(0)
    config = GPT2Config(
        vocab_size=64,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    arguments = TrainingArguments(
        output_dir="trainer-output",
        per_device_train_batch_size=4,
        max_steps=8,
        logging_steps=4,
        save_steps=4,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Sentences())
    result = trainer.train()
    if trainer.is_world_process_zero():
        print(f"final loss {result.training_loss:.6f}")
