"""The files for Kubernetes and Slurm: whole, with the fields that their readers want, and only commands that exist."""

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hermes_rl.console.config_options import read_sections
from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.environment.resolve_config import resolve_settings
from hermes_rl.version import __version__
from tests.docs.test_commands import fault
from tests.examples.kuberay_fields import faults

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KUBERAY = EXAMPLES / "kuberay"
SCRIPTS = sorted((EXAMPLES / "slurm").glob("*.sbatch"))


def documents() -> list[tuple[str, dict[str, Any]]]:
    return [
        (path.name, document)
        for path in sorted(KUBERAY.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]


def one(kind: str) -> dict[str, Any]:
    [found] = [document for _, document in documents() if document["kind"] == kind]
    return found


def pods() -> list[dict[str, Any]]:
    cluster = one("RayJob")["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups] + [one("Deployment")["spec"]["template"]["spec"]]


def test_every_document_says_what_it_is() -> None:
    kinds = {
        "ConfigMap": "v1",
        "Deployment": "apps/v1",
        "PodDisruptionBudget": "policy/v1",
        "RayJob": "ray.io/v1",
        "Service": "v1",
    }
    assert {document["kind"]: document["apiVersion"] for _, document in documents()} == kinds
    assert all(re.fullmatch(r"[a-z0-9-]+", document["metadata"]["name"]) for _, document in documents())


def test_every_field_of_the_ray_job_is_one_that_its_operator_knows() -> None:
    assert list(faults(one("RayJob")["spec"])) == []


def test_a_field_that_the_operator_does_not_know_is_found() -> None:
    spec = copy.deepcopy(one("RayJob")["spec"])
    spec["backOffLimit"] = spec.pop("backoffLimit")
    [group] = spec["rayClusterSpec"]["workerGroupSpecs"]
    group["rayStartParams"]["num-cpus"] = 6
    del group["groupName"]
    group["template"]["spec"]["containers"][0]["volumeMount"] = []
    workers = "spec.rayClusterSpec.workerGroupSpecs[0]"
    assert list(faults(spec)) == [
        f"{workers}.groupName is missing",
        f"{workers}.rayStartParams.num-cpus is no string",
        f"{workers}.template.spec.containers[0].volumeMount is no field",
        "spec.backOffLimit is no field",
    ]


def test_the_ray_cluster_has_what_its_operator_asks_for() -> None:
    job = one("RayJob")["spec"]
    # It is asked for only with the other.
    assert job["shutdownAfterJobFinishes"] or "ttlSecondsAfterFinished" not in job
    for group in job["rayClusterSpec"]["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_ray_counts_the_cores_that_the_pod_asks_for() -> None:
    """KubeRay before 1.2 reads the cores of a limit alone, and Ray those of the whole machine where there is none."""
    [group] = one("RayJob")["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    [container] = group["template"]["spec"]["containers"]
    assert group["rayStartParams"]["num-cpus"] == container["resources"]["requests"]["cpu"]


def test_every_container_has_an_image_a_limit_of_memory_and_volumes_that_are_there() -> None:
    for pod in pods():
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        for container in pod["containers"]:
            assert container["image"] == f"hermes-rl:{__version__}"
            assert container["resources"]["limits"]["memory"]
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes


def test_the_image_holds_the_version_of_ray_that_the_cluster_names() -> None:
    ray = one("RayJob")["spec"]["rayClusterSpec"]["rayVersion"]
    made = (KUBERAY / "Dockerfile").read_text()
    assert f"rayproject/ray:{ray}-py" in made
    assert f"=={__version__}'" in made


def test_the_api_is_reached_by_the_name_and_port_that_workers_are_told() -> None:
    service, deployment = one("Service"), one("Deployment")
    told = yaml.safe_load(one("ConfigMap")["data"]["serve.yaml"])["env"]["rollout_server_url"]
    assert told == f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert str(container["ports"][0]["containerPort"]) in container["args"]


def test_the_settings_in_the_config_map_are_settings_of_serve(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(one("ConfigMap")["data"]["serve.yaml"])
    settings = resolve_settings(load_environment("terminal_test"), read_sections(path), {}, {})
    assert settings.env.stop_timeout < 30


def test_there_is_room_on_the_workers_for_all_replicas() -> None:
    job = one("RayJob")["spec"]
    [group] = job["rayClusterSpec"]["workerGroupSpecs"]
    words = job["entrypoint"].split()
    replicas, cpus = (float(words[words.index(flag) + 1]) for flag in ("--replicas", "--replica-cpus"))
    [container] = group["template"]["spec"]["containers"]
    each = int(float(container["resources"]["requests"]["cpu"]) // cpus)
    assert each * group["maxReplicas"] >= replicas


def test_the_commands_of_the_cluster_exist() -> None:
    [api] = one("Deployment")["spec"]["template"]["spec"]["containers"]
    lines = [one("RayJob")["spec"]["entrypoint"], " ".join([*api["command"], *api["args"]])]
    assert [fault(line) for line in lines] == [None, None]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_whole_and_its_commands_exist(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], capture_output=True, check=False).stderr == b""
    text = script.read_text().replace("\\\n", " ")
    commands = re.findall(r"^hermes-rl .*", text, re.MULTILINE)
    assert commands
    assert [fault(re.sub(r" &$", "", line)) for line in commands] == [None] * len(commands)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_slurm_finds_its_options_before_the_first_command(script: Path) -> None:
    lines = script.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert all(line.startswith("#SBATCH --") for line in lines[:first] if line.startswith("#SBATCH"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:])
    assert {"--job-name", "--time", "--requeue", "--signal"} <= {option.partition("=")[0] for option in options}


def test_shellcheck_has_nothing_to_say() -> None:
    # Beside the Python that runs this, wherever the PATH leads.
    said = subprocess.run(
        [Path(sys.executable).with_name("shellcheck"), *SCRIPTS], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stdout


def test_no_file_holds_a_secret() -> None:
    for _, document in documents():
        assert document["kind"] != "Secret"
    for pod in pods():
        for container in pod["containers"]:
            for variable in container["env"]:
                assert "value" not in variable or variable["name"] in {"HERMES_HOME", "RAY_USAGE_STATS_ENABLED"}
