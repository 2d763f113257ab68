"""Harbor's task format: reading it, building its machines, judging. `environments/harbor_env.py` plays the tasks."""
