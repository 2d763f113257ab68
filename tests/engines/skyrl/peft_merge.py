"""PEFT's own merge beside ours, in vLLM's environment, which has PEFT: peft_merge.py BASE ADAPTER MERGED.

Prints {"missing": names that PEFT found no weights for, "largest": the largest difference of any weight, "changed": how
far the merge is from the base}.
"""

import json
import sys
from importlib import import_module
from typing import Any

peft: Any = import_module("peft")
torch: Any = import_module("torch")
transformers: Any = import_module("transformers")

base, adapter, merged = sys.argv[1:]


def weights(folder: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


wrapped = peft.PeftModel.from_pretrained(weights(base), adapter)
saved = peft.utils.load_peft_weights(adapter)
loaded = peft.get_peft_model_state_dict(wrapped)
theirs, ours, before = wrapped.merge_and_unload().state_dict(), weights(merged).state_dict(), weights(base).state_dict()
differences = [float((theirs[name] - ours[name]).abs().max()) for name in theirs]
changes = [float((before[name] - ours[name]).abs().max()) for name in theirs]
missing = sorted(set(saved) ^ set(loaded))
print(json.dumps({"missing": missing, "largest": max(differences), "changed": max(changes)}))
