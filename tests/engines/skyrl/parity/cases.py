"""The settings that are compared: aggregations, ratio options, gradient clipping. A name, and what differs."""

from typing import Any

# No truncation, no gradient clipping. Adam's first update is lr * g / (|g| + eps): with both this large, nearly g.
SCALE = 1e6
BASE: dict[str, Any] = {
    "max_importance_weight": None,
    "grad_clip_norm": 0.0,
    "learning_rate": SCALE,
    "adam_eps": SCALE,
    "max_staleness": 0,
}
CASES: dict[str, dict[str, Any]] = {
    "token_mean": {},
    "token_sum": {"loss_aggregation": "token_sum"},
    "constant": {"loss_aggregation": "constant", "loss_constant": 64.0},
    "sequence_mean": {"loss_aggregation": "sequence_mean"},
    "truncated": {"max_importance_weight": 1.3},
    "ppo": {"loss": "ppo"},
    "ppo, sequence_mean": {"loss": "ppo", "loss_aggregation": "sequence_mean"},
    "ppo, truncated": {"loss": "ppo", "max_importance_weight": 1.3},
    "cispo": {"loss": "cispo"},
    "reinforce": {"loss": "reinforce"},
    "band": {"ratio_band": (0.7, 1.4)},
    "probability change": {"max_probability_change": 5e-4},
    "gspo": {
        "loss": "ppo",
        "ratio_level": "sequence",
        "loss_aggregation": "sequence_mean",
        "clip_low": 0.98,
        "clip_high": 1.02,
    },
    "sequence ratio": {"ratio_level": "sequence", "max_importance_weight": 1.01},
    "clipped gradient": {"loss_aggregation": "token_sum", "grad_clip_norm": 1.0},
}
