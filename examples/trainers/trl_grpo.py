#!/usr/bin/env python3
"""TRL's GRPOTrainer on a hermes-rl environment: trl_grpo.py MODEL ENVIRONMENT [STEPS]."""

import sys

from trl import GRPOConfig  # pyright: ignore[reportMissingImports] (in an environment of its own)

from hermes_rl.interop.trainers.trl import HermesGRPOTrainer

model, environment, steps = sys.argv[1], sys.argv[2], int((sys.argv[3:] or ["12"])[0])
args = GRPOConfig("trl-out", max_steps=steps, num_generations=8, per_device_train_batch_size=32, learning_rate=3e-3)
args.lr_scheduler_type, args.report_to, args.save_strategy, args.logging_steps = "constant", [], "no", 1
HermesGRPOTrainer(model, environment=environment, args=args).train()
