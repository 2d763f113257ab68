"""The extra `ray`: a Ray of one node, and the actor that holds replicas answering from it."""

import json
import os
import sys
from typing import Any

from hermes_rl.orchestration.replicas.ray_actor import ReplicaActor


def main(_given: dict[str, Any]) -> str:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    # Of its own: without an address Ray joins one that somebody else has here.
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        actor: Any = ray.remote(ReplicaActor).remote("smoke", "order", 1.0)
        order, _life, _node, workers, _lines = ray.get(actor.poll.remote("driver"), timeout=120)
        assert (order, workers) == ("order", {}), (order, workers)
        ray.kill(actor)
    finally:
        ray.shutdown()
    return "a replica's actor answered from a Ray of one node"


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
