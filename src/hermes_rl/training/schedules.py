"""The learning rate of each step.

Always true: it is above 0 in every step of the run, since a step of size 0 would spend a batch on nothing, and never
above the one set.
"""

import math

from hermes_rl.training.settings import Schedule, TrainerSettings


def learning_rate(settings: TrainerSettings, step: int) -> float:
    """Of the step that follows `step` others. It would be 0 after the last one, unless it is constant."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    gone = min((step - settings.warmup_steps) / (settings.total_steps - settings.warmup_steps), 1.0)
    match settings.lr_schedule:
        case Schedule.CONSTANT:
            return settings.learning_rate
        case Schedule.LINEAR:
            return settings.learning_rate * (1 - gone)
        case Schedule.COSINE:
            return settings.learning_rate * (1 + math.cos(math.pi * gone)) / 2
