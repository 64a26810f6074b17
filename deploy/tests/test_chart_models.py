"""Where a worker's weights are, and that its init container puts them there."""

import pytest

from deploy.tests.charts import containers, environment, render_values

WORKER = "workers.wan.cache"
VOLUMES = {
    "emptyDir": {"emptyDir": {"sizeLimit": "50Gi"}},
    "memory": {"emptyDir": {"medium": "Memory", "sizeLimit": "50Gi"}},
    "claim": {"persistentVolumeClaim": {"claimName": "fsx-models"}},
    "hostPath": {"hostPath": {"path": "/mnt/models", "type": "DirectoryOrCreate"}},
}


@pytest.mark.parametrize("kind", VOLUMES)
def test_the_init_container_and_the_worker_share_the_volume_of_the_cache(kind):
    given = {"kind": kind, "size": "50Gi", "claim": "fsx-models", "path": "/mnt/models"}
    options = [part for name, value in given.items() for part in ("--set", f"{WORKER}.{name}={value}")]
    pod = render_values("one-tenant", *options).pods["films-worker-wan"]
    (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == "models"]
    assert volume == {"name": "models"} | VOLUMES[kind]
    pull, worker = containers(pod)
    for container in (pull, worker):
        assert {"name": "models", "mountPath": "/models"} in container["volumeMounts"]
        assert environment(container)["FILMGATE_MODELS__CACHE"] == "/models"
    assert pull["args"][:2] == ["models", "pull"]


def test_weights_in_memory_count_against_the_limit_of_the_container_that_pulls_them():
    """A pull into RAM must not be killed by the small limit that a pull to disk has."""
    pods = [
        render_values("one-tenant", "--set", f"{WORKER}.kind={kind}").pods["films-worker-wan"]
        for kind in ("emptyDir", "memory")
    ]
    pulls, workers = zip(*(containers(pod) for pod in pods), strict=True)
    assert [pull["resources"]["limits"]["memory"] for pull in pulls] == [
        "4Gi",
        workers[1]["resources"]["limits"]["memory"],
    ]


def test_a_model_with_a_name_is_pulled_from_its_location_and_served_under_the_name():
    options = ["--set", "workers.wan.model=wan=s3://weights/models/x/v1/,workers.wan.modelName=wan"]
    pull, worker = containers(render_values("one-tenant", *options).pods["films-worker-wan"])
    assert pull["args"] == ["models", "pull", "s3://weights/models/x/v1/"]
    assert worker["args"] == ["worker", "--model", "wan=s3://weights/models/x/v1/"]


def test_a_model_of_the_hub_is_pulled_into_the_cache_and_not_into_the_small_temporary_folder():
    options = ["--set", "workers.wan.model=wan2.1-t2v-14b"]
    (worker,) = containers(render_values("one-tenant", *options).pods["films-worker-wan"])
    (cache,) = [mount["mountPath"] for mount in worker["volumeMounts"] if mount["name"] == "models"]
    assert environment(worker)["HF_HOME"].startswith(f"{cache}/")
