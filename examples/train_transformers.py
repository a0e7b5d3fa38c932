"""Train a small causal language model with the Trainer of Hugging Face, movable by TrainMover.

    pip install 'trainmover[transformers]'
    trainmover run --slots 2 --standbys 2 examples/train_transformers.py --epochs 3

The lines marked with (*) are all that differs from a script for the Trainer.
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, set_seed  # (*)

from trainmover_executor.frameworks.transformers import TrainMoverTrainer as Trainer  # (*)

VOCABULARY, LENGTH = 64, 32


def data(samples, seed):
    """Numbers that go on at a pace of their own, as tokens."""
    generator = torch.Generator().manual_seed(seed)
    begin = torch.randint(VOCABULARY, (samples, 1), generator=generator)
    pace = torch.randint(1, 8, (samples, 1), generator=generator)
    tokens = (begin + pace * torch.arange(LENGTH)) % VOCABULARY
    return [{"input_ids": each, "labels": each} for each in tokens]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output", default="out/train_transformers")
    options = parser.parse_args()

    set_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    training_args = TrainingArguments(
        output_dir=options.output,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=2e-3,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        logging_steps=10,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=training_args,
        train_dataset=data(2000, seed=1),
        eval_dataset=data(200, seed=2),
    )
    trainer.train()
    print(trainer.evaluate())
    trainer.save_model()


if __name__ == "__main__":
    main()
