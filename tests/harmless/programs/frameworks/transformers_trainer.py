# how: torchrun
# needs: transformers
# slow
import os

os.environ["HF_HUB_OFFLINE"] = "1"
import nets
import torch
from seen import say
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback

torch.manual_seed(0)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
)
rows = [{"input_ids": torch.randint(0, 50, (8,)), "labels": torch.tensor(n % 2)} for n in range(32)]


class Stops(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step >= 6


arguments = TrainingArguments(
    "out",
    use_cpu=True,
    max_steps=8,
    per_device_train_batch_size=2,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    logging_strategy="no",
    seed=3,
)
trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[Stops()])
trainer.remove_callback(PrinterCallback)  # it prints times
told = trainer.train()
say(told.global_step, float(told.training_loss).hex(), nets.digest(model), vars(trainer.control))
