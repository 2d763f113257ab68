"""The fields that KubeRay's operator reads of a RayJob, by the names and kinds of its CRDs (ray.io/v1, KubeRay 1.3).

Always true: an API server drops a field that its CRD does not know without a word, so one that is not here is a fault.
`!` marks what the CRD requires. Pods are Kubernetes' own: of those the few fields that the example uses.
"""

from collections.abc import Iterator, Mapping
from typing import Any

JOB = {
    "activeDeadlineSeconds": "integer",
    "backoffLimit": "integer",
    "clusterSelector": "words",
    "deletionPolicy": "string",
    "entrypoint": "string",
    "entrypointNumCpus": "number",
    "entrypointNumGpus": "number",
    "entrypointResources": "string",
    "jobId": "string",
    "managedBy": "string",
    "metadata": "words",
    "rayClusterSpec": "cluster",
    "runtimeEnvYAML": "string",
    "shutdownAfterJobFinishes": "boolean",
    "submissionMode": "string",
    "submitterConfig": "object",
    "submitterPodTemplate": "template",
    "suspend": "boolean",
    "ttlSecondsAfterFinished": "integer",
}
CLUSTER = {
    "autoscalerOptions": "object",
    "enableInTreeAutoscaling": "boolean",
    "gcsFaultToleranceOptions": "object",
    "headGroupSpec!": "head",
    "headServiceAnnotations": "words",
    "managedBy": "string",
    "rayVersion": "string",
    "suspend": "boolean",
    "workerGroupSpecs": "workers",
}
HEAD = {
    "enableIngress": "boolean",
    "headService": "object",
    "rayStartParams!": "words",
    "serviceType": "string",
    "template!": "template",
}
WORKERS = {
    "groupName!": "string",
    "idleTimeoutSeconds": "integer",
    "maxReplicas!": "integer",
    "minReplicas!": "integer",
    "numOfHosts": "integer",
    "rayStartParams!": "words",
    "replicas": "integer",
    "scaleStrategy": "object",
    "template!": "template",
}
TEMPLATE = {"metadata": "object", "spec!": "pod"}
POD = {
    "containers!": "containers",
    "nodeSelector": "words",
    "serviceAccountName": "string",
    "terminationGracePeriodSeconds": "integer",
    "tolerations": "list",
    "volumes": "list",
}
CONTAINER = {
    "args": "list",
    "command": "list",
    "env": "list",
    "image!": "string",
    "lifecycle": "object",
    "livenessProbe": "object",
    "name!": "string",
    "ports": "list",
    "readinessProbe": "object",
    "resources": "object",
    "volumeMounts": "list",
}
OBJECTS = {"cluster": CLUSTER, "head": HEAD, "template": TEMPLATE, "pod": POD}
LISTS = {"workers": WORKERS, "containers": CONTAINER}
KINDS: Mapping[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "integer": int,
    "list": list,
    "number": (int, float),
    "object": dict,
    "string": str,
}


def faults(found: Mapping[str, Any], fields: Mapping[str, str] = JOB, place: str = "spec") -> Iterator[str]:
    """What the operator would not read, would not take, or would miss."""
    kinds = {name.rstrip("!"): kind for name, kind in fields.items()}
    required = [name.removesuffix("!") for name in fields if name.endswith("!")]
    yield from (f"{place}.{name} is missing" for name in required if name not in found)
    for name, value in found.items():
        here = f"{place}.{name}"
        if name not in kinds:
            yield f"{here} is no field"
        else:
            yield from _of_kind(value, kinds[name], here)


def _of_kind(value: Any, kind: str, place: str) -> Iterator[str]:
    if kind in OBJECTS:
        yield from faults(value, OBJECTS[kind], place)
    elif kind in LISTS:
        for number, one in enumerate(value):
            yield from faults(one, LISTS[kind], f"{place}[{number}]")
    elif kind == "words":
        # Numbers too are words here, and a number is refused.
        yield from (f"{place}.{name} is no string" for name, one in value.items() if not isinstance(one, str))
    elif not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind != "boolean"):
        yield f"{place} is no {kind}"
