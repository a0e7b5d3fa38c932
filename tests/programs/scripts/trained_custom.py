"""A Trainer of one's own: a loss with a memory, counted tokens, two evaluations, an early stop."""

import torch
from helper import OUT, finish
from torch.utils.data import IterableDataset
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    TrainerCallback,
    TrainingArguments,
)

from trainmover import Session
from trainmover_executor.frameworks.transformers import TrainMoverTrainer

VOCABULARY, LENGTH = 24, 10


def texts(count, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (count, LENGTH), generator=generator).cumsum(1) % VOCABULARY
    return [{"input_ids": each, "labels": each.clone()} for each in tokens]


class Stream(IterableDataset):
    def __iter__(self):
        yield from texts(640, seed=5)


class Weighted(TrainMoverTrainer):
    """Easy batches count less than hard ones: it remembers how hard they were."""

    def __init__(self, *args, temperature, **kwargs):
        super().__init__(*args, **kwargs)
        self.temperature = temperature
        self.hardness = torch.ones(())
        self.seen = 0
        self.curve = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        logits = outputs.logits[:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten())
        if model.training:
            self.seen += labels.numel()
            self.hardness.mul_(0.9).add_(0.1 * loss.detach())
            loss = loss * (loss.detach() / self.hardness) ** self.temperature
        return (loss, outputs) if return_outputs else loss

    def evaluate(self, *args, **kwargs):
        metrics = super().evaluate(*args, **kwargs)
        self.curve.append(round(self.hardness.item(), 9))
        return metrics

    def log(self, logs, *args, **kwargs):
        logs["seen"] = self.seen
        super().log(logs, *args, **kwargs)


class Tune(TrainerCallback):
    def __init__(self):
        self.substeps = 0
        self.rates = []

    def on_substep_end(self, args, state, control, **kwargs):
        self.substeps += 1

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(1.0 if self.substeps % 2 else 0.5)

    def on_step_end(self, args, state, control, optimizer=None, **kwargs):
        self.rates.append(optimizer.param_groups[0]["lr"])
        if state.global_step % 13 == 0:
            control.should_evaluate = True
        return control


Session.init()
args = TrainingArguments(
    output_dir=str(OUT / "gpt2"),
    max_steps=200,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=3,
    learning_rate=5e-3,
    lr_scheduler_type="constant_with_warmup",
    warmup_steps=9,
    include_num_input_tokens_seen="all",
    logging_strategy="epoch",
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=1,
    load_best_model_at_end=True,
    metric_for_best_model="eval_far_loss",
    report_to="none",
    use_cpu=True,
)
torch.manual_seed(args.seed)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2)
)
tune = Tune()
trainer = Weighted(
    model=model,
    args=args,
    train_dataset=Stream(),
    eval_dataset={"near": texts(20, seed=6), "far": texts(21, seed=7)},
    callbacks=[tune, EarlyStoppingCallback(early_stopping_patience=2)],
    temperature=0.5,
)
trainer.train()
predicted = trainer.predict(texts(8, seed=8))
finish(
    trainer.args.process_index,
    trainer.model,
    seen=(trainer.seen, trainer.state.num_input_tokens_seen),
    hardness=trainer.hardness,
    curve=trainer.curve,
    substeps=tune.substeps,
    rates=tune.rates,
    steps=(trainer.state.global_step, trainer.state.epoch, trainer.state.best_global_step),
    predicted=predicted.predictions.sum(),
)
