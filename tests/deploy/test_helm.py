"""The chart: rendered with several values, what comes out is what Kubernetes and our own checks accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from aviso_server import __version__
from aviso_server.config import inspect
from tests.deploy.rendering import DIRECTORY, Failed, container, documents, environment, helm

JETSTREAM = {"config": {"notification_backend": {"kind": "jetstream", "jetstream": {"replicas": 3}}}}
VALUES: dict[str, dict[str, Any]] = {
    "as delivered": {},
    "three pods": {**JETSTREAM, "replicaCount": 3, "podDisruptionBudget": {"enabled": True}},
    "everything": {
        "ingress": {"enabled": True, "className": "nginx", "tls": [{"hosts": ["a.example.org"], "secretName": "tls"}]},
        "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
        "service": {"annotations": {"a": "b"}},
        "existingSecret": "secrets",
        "extraEnv": [{"name": "RUST_LOG", "value": "debug"}],
        "extraVolumes": [{"name": "keys", "secret": {"secretName": "keys"}}],
        "extraVolumeMounts": [{"name": "keys", "mountPath": "/keys"}],
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1}],
        "podLabels": {"team": "x"},
        "podAnnotations": {"b": "c"},
        "serviceAccount": {"annotations": {"c": "d"}},
        "persistence": {"storageClass": "fast"},
        "image": {"tag": "9.9.9"},
    },
    "archive": {"config": {"archive": {"enabled": True}}},
    "archive of a broker's log": {
        "config": {"notification_backend": {"kind": "jetstream"}, "archive": {"enabled": True}},
    },
    "little": {
        "metrics": {"enabled": False},
        "persistence": {"enabled": False},
        "serviceAccount": {"create": False},
        "fullnameOverride": "mine",
    },
}


@pytest.mark.parametrize("name", VALUES)
def test_helm_finds_no_fault(name: str) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", values=VALUES[name])


@pytest.mark.parametrize("name", VALUES)
def test_what_is_rendered_fits_together(name: str) -> None:
    found = documents(VALUES[name])
    deployment = found["Deployment"]
    pod = deployment["spec"]["template"]
    labels = deployment["spec"]["selector"]["matchLabels"]
    assert labels.items() <= pod["metadata"]["labels"].items()
    assert found["Service"]["spec"]["selector"] == labels
    server = container(found)
    ports = {port["name"] for port in server["ports"]}
    assert {port["targetPort"] for port in found["Service"]["spec"]["ports"]} == ports
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        assert server[probe]["httpGet"]["port"] in ports
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in server["volumeMounts"]} == volumes
    for document in found.values():
        assert document["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        assert len(document["metadata"]["name"]) <= 63


@pytest.mark.parametrize("name", VALUES)
def test_the_server_starts_with_what_is_rendered(name: str, tmp_path: Path) -> None:
    found = documents(VALUES[name])
    file = tmp_path / "config.yaml"
    file.write_text(found["ConfigMap"]["data"]["config.yaml"])
    inspected = inspect(environment(found), file)
    assert inspected.problems == ()
    assert inspected.settings.application.host == "0.0.0.0"
    assert inspected.settings.metrics.enabled is (name != "little")
    paths = [mount["mountPath"] for mount in container(found)["volumeMounts"]]
    archive = inspected.settings.archive
    for place in (inspected.settings.notification_backend.sqlite.path, Path(archive.path), archive.work_path):
        assert str(place.parent) in paths, "nothing else can be written to"


@pytest.mark.parametrize("name", VALUES)
def test_nobody_is_root(name: str) -> None:
    found = documents(VALUES[name])
    pod, server = found["Deployment"]["spec"]["template"]["spec"], container(found)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert server["securityContext"]["allowPrivilegeEscalation"] is False
    assert server["securityContext"]["readOnlyRootFilesystem"] is True
    assert server["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_rolling_restarts() -> None:
    one, three = documents({})["Deployment"]["spec"], documents(VALUES["three pods"])["Deployment"]["spec"]
    assert one["strategy"] == {"type": "Recreate"}, "two pods cannot share a sqlite log"
    assert three["replicas"] == 3
    assert three["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    pod = three["template"]["spec"]
    [wait] = [int(word) for word in pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] if word.isdigit()]
    assert pod["terminationGracePeriodSeconds"] > wait + 30
    before = one["template"]["metadata"]["annotations"]["checksum/config"]
    changed = documents({"config": {"application": {"base_url": "https://a"}}})["Deployment"]["spec"]["template"]
    assert changed["metadata"]["annotations"]["checksum/config"] != before, "a new configuration restarts the pods"


def test_what_is_made_only_when_asked_for() -> None:
    assert set(documents({})) == {"ConfigMap", "Deployment", "PersistentVolumeClaim", "Service", "ServiceAccount"}
    assert set(documents(VALUES["little"])) == {"ConfigMap", "Deployment", "Service"}
    everything = documents(VALUES["everything"])
    assert {"Ingress", "ServiceMonitor"} <= set(everything)
    [rule] = everything["Ingress"]["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"]["name"] == everything["Service"]["metadata"]["name"]
    server = container(everything)
    assert everything["Deployment"]["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert server["image"] == "aviso-server:9.9.9"
    assert server["envFrom"] == [{"secretRef": {"name": "secrets"}}]
    assert "PodDisruptionBudget" in documents(VALUES["three pods"])
    assert "PersistentVolumeClaim" not in documents(VALUES["three pods"])


def test_several_pods_need_a_log_that_they_can_share() -> None:
    with pytest.raises(Failed, match="jetstream"):
        documents({"replicaCount": 2})


@pytest.mark.parametrize("name", ["archive", "archive of a broker's log"])
def test_the_archive_has_room(name: str) -> None:
    found = documents(VALUES[name])
    spec = found["Deployment"]["spec"]
    assert spec["strategy"] == {"type": "Recreate"}, "one process archives at a time"
    volumes = {volume["name"]: volume for volume in spec["template"]["spec"]["volumes"]}
    claim = found["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == claim
    assert "emptyDir" in volumes["tmp"]
    assert container(found)["resources"]["requests"]["memory"] == "2Gi"
    assert container(documents({}))["resources"]["requests"]["memory"] == "512Mi"


@pytest.mark.parametrize("several", [{"replicaCount": 2}, {"autoscaling": {"enabled": True}}])
def test_an_archive_is_kept_by_one_pod(several: dict[str, Any]) -> None:
    with pytest.raises(Failed, match=r"config\.archive\.enabled needs replicaCount: 1"):
        documents({**VALUES["archive of a broker's log"], **several})


def test_an_archive_needs_a_log_that_lasts() -> None:
    with pytest.raises(Failed, match="sqlite or jetstream, not in_memory"):
        documents({"config": {"notification_backend": {"kind": "in_memory"}, "archive": {"enabled": True}}})


def test_names() -> None:
    assert documents({}, "aviso-server")["Service"]["metadata"]["name"] == "aviso-server"
    assert documents({}, "west")["Service"]["metadata"]["name"] == "west-aviso-server"
    pod = documents({"fullnameOverride": "avisoserver"})["Deployment"]["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is False, "else Kubernetes would set AVISOSERVER_PORT for a service of this name"


def test_versions() -> None:
    chart = yaml.safe_load((DIRECTORY / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
