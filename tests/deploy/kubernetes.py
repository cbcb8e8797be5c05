#!/usr/bin/env python3
"""The Helm chart: linted, rendered for many cases, and held against the schemas of Kubernetes' API:

  build/deploy-venv/bin/python tests/deploy/kubernetes.py [--bin build/dev/bin] [--only NAME]

scripts/bootstrap_deploy makes that environment. --bin: the flags in the manifests must be those of
these programs.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import kubernetes_validate
import yaml

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from cases import add_only, run_cases
from waiting import Failed, check

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/kubernetes/milepost"
HELM = pathlib.Path(sys.prefix) / "bin/helm"
VERSIONS = ("1.27", "1.37")  # the oldest that the chart takes, the newest that there is a schema of
# Of others' operators: Kubernetes has no schema of them.
WITHOUT_SCHEMA = {"Certificate", "ServiceMonitor", "PrometheusRule", "ScaledObject"}
POOL = "coordinator: {tls: {secretName: t}}\nworkers: {pools: [{name: a, "
TOKEN = POOL + "joinTokenSecretName: t, "
# What is wrong, and words that the message has to have.
REFUSED = [
    ("coordinator: {tls: {secretName: t}, replica: 2}", ["/coordinator", "replica"]),
    ("coordinator: {tls: {secretName: t}, replicas: '2'}", ["/coordinator/replicas", "integer"]),
    ("coordinator: {tls: {secretName: t}, replicas: 2}", ["coordinator.etcd.endpoints"]),
    ("coordinator: {tls: {secretName: t}, replicas: 2, etcd: {endpoints: ['e:2379']}}",
     ["coordinator.persistence.accessModes", "ReadWriteMany"]),
    ("coordinator: {}", ["coordinator.tls.secretName"]),
    ("coordinator: {tls: {certManager: {enabled: true}}}", ["issuerRef.name"]),
    ("coordinator: {enabled: false}\nworkers: {pools: [{name: a, joinTokenSecretName: t}]}",
     ["workers.coordinator"]),
    ("coordinator: {tls: {secretName: t}, extraArgs: [x]}", ["/coordinator/extraArgs/0"]),
    ("tolerations: []", ["tolerations"]),
    ("coordinator: {tls: {secretName: t}}\nweb: {enabled: true}", ["web.tlsSecretName"]),
    ("coordinator: {tls: {secretName: t}}\nserviceMonitor: {enabled: true}",
     ["serviceMonitor.tokenSecretName"]),
    ("serviceMonitor: {interval: 15}", ["/serviceMonitor/interval"]),
    (TOKEN + "rdma: {mode: both}}]}", ["/workers/pools/0/rdma/mode", "none", "host", "sriov"]),
    (TOKEN + "rdma: {mode: host, network: n}}]}", ["/workers/pools/0/rdma/network"]),
    (TOKEN + "rdma: {mode: sriov}}]}", ["/workers/pools/0/rdma", "resource", "network"]),
    (TOKEN + "rdma: {mode: none, resource: r/r}}]}", ["/workers/pools/0/rdma/resource"]),
    (TOKEN + "hostNetwork: true, rdma: {mode: sriov, network: n, resource: r/r}}]}",
     ["/workers/pools/0/hostNetwork"]),
    (TOKEN + "gpu: 8}]}", ["/workers/pools/0", "'gpu'"]),
    (TOKEN + "gpus: 8, slots: 2}]}", ["/workers/pools/0/slots"]),
    (TOKEN + "kind: DaemonSet, replicas: 2}]}", ["/workers/pools/0/replicas"]),
    (TOKEN + "kind: DaemonSet, data: {size: 1Gi}}]}", ["/workers/pools/0/data/size"]),
    (TOKEN + "tlsSecretName: s}]}", ["/workers/pools/0"]),
    (TOKEN + "joinServiceAccount: true}]}", ["/workers/pools/0"]),
    (POOL + "joinServiceAccount: true}]}", ["a has joinServiceAccount", "serviceAccounts.enabled"]),
    (POOL + "joinServiceAccount: false}]}", ["/workers/pools/0/joinServiceAccount"]),
    ("coordinator: {tls: {secretName: t}, serviceAccounts: {enabled: true}, "
     "workerAuthoritySecretName: a}", ["coordinator.serviceAccounts.issuer"]),
    ("coordinator: {tls: {secretName: t}, serviceAccounts: {enabled: true, issuer: i}}",
     ["coordinator.workerAuthoritySecretName"]),
    ("coordinator: {enabled: false}\nworkers: {coordinator: 'c:1', pools: "
     "[{name: a, joinServiceAccount: true}]}", ["workers.authoritySecretName"]),
    (POOL + "gpus: 1}]}", ["joinTokenSecretName", "tlsSecretName"]),
    (POOL + "tlsSecretName: s, replicas: 2}]}", ["/workers/pools/0/replicas"]),
    (TOKEN + "}, {name: a, joinTokenSecretName: t}]}", ["two are called a"]),
    (POOL.replace("name: a", "name: web") + "joinTokenSecretName: t}]}", ["/workers/pools/0/name"]),
]
# Mistakes in the chart that must not go unnoticed: file, what is there, what stands there instead.
BREAKS = [
    ("templates/_helpers.tpl", "readOnlyRootFilesystem: true", "readOnlyRootFilesytem: true"),
    ("templates/_helpers.tpl", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"),
    ("templates/coordinator.yaml", "replicas: {{ $of.replicas }}", "replicas: {{ $of.replicas }}x"),
    ("templates/coordinator.yaml", "{name: tmp, mountPath: /tmp}", "{name: temp, mountPath: /tmp}"),
    ("templates/workers.yaml", "maxUnavailable: {{", "maximumUnavailable: {{"),
    ("templates/coordinator.yaml", "targetPort: grpc, protocol", "targetPort: rpc, protocol"),
]


def render(values, chart=CHART, version=VERSIONS[0]):
    """What helm makes of a file of values, as objects."""
    done = subprocess.run([HELM, "template", "milepost", chart, "--namespace", "ml", "--values",
                           values, "--kube-version", version], text=True, capture_output=True,
                          check=False)
    check(done.returncode == 0, f"{values}: {done.stderr}")
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def template_of(found):
    return found["spec"]["template"] if found["kind"] in (
        "StatefulSet", "DaemonSet", "Deployment") else None


def check_schema(objects, where):
    for found in objects:
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(found, version, strict=True)
                check(found["kind"] not in WITHOUT_SCHEMA, f"{found['kind']} has a schema now")
            except kubernetes_validate.SchemaNotFoundError:
                check(found["kind"] in WITHOUT_SCHEMA, f"{where}: no schema of {found['kind']}")
            except kubernetes_validate.ValidationError as wrong:
                raise Failed(f"{where}: {found['kind']} {found['metadata']['name']} at {version}: "
                             f"{wrong.message}") from wrong


def check_careful(objects, where):
    """No root, nothing writable, no rights, but for what only a privileged container sees."""
    for found in objects:
        pod = template_of(found)
        if pod is None:
            continue
        spec = pod["spec"]
        place = f"{where}: {found['kind']} {found['metadata']['name']}"
        check(spec["automountServiceAccountToken"] is False, f"{place} has the API's token")
        check(spec["securityContext"]["runAsNonRoot"] is True, f"{place} may be root")
        check(spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", place)
        volumes = {volume["name"] for volume in spec["volumes"]}
        volumes |= {claim["metadata"]["name"]
                    for claim in found["spec"].get("volumeClaimTemplates", [])}
        for one in spec["containers"]:
            security = one["securityContext"]
            check(security["readOnlyRootFilesystem"] is True, f"{place}: its root is writable")
            if security.get("privileged"):
                check("privileged" in where, f"{place} is privileged")
            else:
                check(security["capabilities"]["drop"] == ["ALL"], f"{place} has capabilities")
                check(security["allowPrivilegeEscalation"] is False, f"{place} may gain rights")
            mounts = [mount["name"] for mount in one["volumeMounts"]]
            check(set(mounts) == volumes, f"{place}: mounts {mounts}, has volumes {volumes}")
            paths = [mount["mountPath"] for mount in one["volumeMounts"]]
            check(len(paths) == len(set(paths)), f"{place}: two mounts at one place: {paths}")


def check_connected(objects, where):
    """What selects pods finds some, and ports have the names that are asked for."""
    pods = [(template_of(found)["metadata"]["labels"], template_of(found)["spec"])
            for found in objects if template_of(found)]
    for found in objects:
        kind = found["kind"]
        selector = {"Service": lambda spec: spec["selector"],
                    "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
                    "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"]}.get(kind)
        if selector is None:
            continue
        place = f"{where}: {kind} {found['metadata']['name']}"
        wanted = selector(found["spec"]).items()
        chosen = [spec for labels, spec in pods if wanted <= labels.items()]
        check(chosen or found["metadata"]["name"].endswith("-workers"), f"{place} selects nothing")
        if kind == "Service":
            ports = {port["name"] for spec in chosen for one in spec["containers"]
                     for port in one.get("ports", [])}
            asked = {port["targetPort"] for port in found["spec"].get("ports", [])}
            check(asked <= ports, f"{place}: ports {asked}, pods have {ports}")
    names = [(found["kind"], found["metadata"]["name"]) for found in objects]
    check(len(names) == len(set(names)), f"{where}: two of one name: {sorted(names)}")


def check_all(objects, where):
    check_schema(objects, where)
    check_careful(objects, where)
    check_connected(objects, where)


def cases():
    found = sorted(CHART.glob("ci/*.yaml"))
    check(len(found) >= 20, f"{len(found)} cases in {CHART}/ci")
    return found


def lint(_):
    for values in cases():
        done = subprocess.run([HELM, "lint", "--strict", CHART, "--values", values], text=True,
                              capture_output=True, check=False)
        check(done.returncode == 0, f"{values}: {done.stdout}{done.stderr}")


def valid(_):
    for values in cases():
        for version in VERSIONS:
            check_all(render(values, version=version), values.name)


def refused(_):
    with tempfile.TemporaryDirectory() as folder:
        values = pathlib.Path(folder) / "values.yaml"
        for text, words in REFUSED:
            values.write_text(text)
            try:
                render(values)
            except Failed as message:
                for word in words:
                    check(word in str(message), f"{text}: '{word}' is not in: {message}")
            else:
                raise Failed(f"taken: {text}")


def broken(_):
    """Each check can fail."""
    with tempfile.TemporaryDirectory() as folder:
        for number, (path, there, instead) in enumerate(BREAKS):
            chart = pathlib.Path(folder) / str(number)
            shutil.copytree(CHART, chart)
            text = (chart / path).read_text()
            check(there in text, f"{path} has no '{there}'")
            (chart / path).write_text(text.replace(there, instead, 1))
            try:
                check_all(render(CHART / "ci/one-gpu-pool.yaml", chart), "one-gpu-pool.yaml")
            except Failed:
                continue
            raise Failed(f"{path}: '{instead}' goes unnoticed")


def flags(options):
    """The programs know every flag."""
    if not options.bin:
        return "skipped: no --bin"
    known = {}
    for program in ("milepost-coordinator", "milepost-worker", "milepost"):
        argv = [pathlib.Path(options.bin) / program, *(["web"] if program == "milepost" else [])]
        text = subprocess.run([*argv, "--help"], text=True, capture_output=True, check=True).stdout
        known[program] = set(re.findall(r"(?m)^ +(?:-\w,)?(--[a-z-]+)", text))
    missing = set()
    for values in cases():
        for found in filter(template_of, render(values)):
            for one in template_of(found)["spec"]["containers"]:
                program = {"coordinator": "milepost-coordinator", "worker": "milepost-worker",
                           "web": "milepost"}[one["name"]]
                given = {argument.split("=")[0] for argument in one["args"] if argument[0] == "-"}
                missing |= {f"{program} {flag}" for flag in given - known[program]}
    check(not missing, f"the programs do not know: {sorted(missing)}")
    return None


def upgrades(_):
    """What a StatefulSet cannot change later is the same for one coordinator and for several."""
    free = {"replicas", "template", "updateStrategy", "minReadySeconds", "ordinals"}
    fixed = []
    for case in ("one-gpu-pool", "standby"):
        spec, = [found["spec"] for found in render(CHART / f"ci/{case}.yaml")
                 if found["metadata"]["name"] == "milepost-coordinator"
                 and found["kind"] == "StatefulSet"]
        fixed.append({key: value for key, value in spec.items() if key not in free})
    check(fixed[0] == fixed[1], f"an upgrade would be refused: {fixed}")


def rules(_):
    """The PrometheusRule has the rules that are tested where they lie."""
    there = [group for name in ("recording", "alerts") for group in
             yaml.safe_load((ROOT / f"deploy/monitoring/{name}.yaml").read_text())["groups"]]
    made, = [found["spec"]["groups"] for found in render(CHART / "ci/monitoring.yaml")
             if found["kind"] == "PrometheusRule"]
    check(made == there, f"{made} is not {there}")


def plain(_):
    done = subprocess.run([ROOT / "deploy/kubernetes/render_plain", HELM, "--check"], text=True,
                          capture_output=True, check=False)
    check(done.returncode == 0, done.stdout + done.stderr)
    for folder in ("plain", "examples"):
        for path in sorted((ROOT / "deploy/kubernetes" / folder).glob("*.yaml")):
            objects = [found for found in yaml.safe_load_all(path.read_text()) if found]
            check(objects, f"{path} is empty")
            check_all(objects, path.name)


CASES = (lint, valid, refused, broken, flags, upgrades, rules, plain)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin")
    add_only(parser, CASES)
    options = parser.parse_args()
    return run_cases(CASES, options.only, lambda case, _: case(options))


if __name__ == "__main__":
    sys.exit(main())
