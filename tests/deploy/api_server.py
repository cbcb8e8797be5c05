#!/usr/bin/env python3
"""The Helm chart and service accounts with a real API server of Kubernetes:

  build/deploy-venv/bin/python tests/deploy/api_server.py --kubernetes DIR --bin build/dev/bin

DIR has kube-apiserver, kube-controller-manager and kubectl, such as those that Debian's source
package `kubernetes` (1.20.2) makes, with golang-go and rsync:
`make WHAT="cmd/kube-apiserver cmd/kube-controller-manager cmd/kubectl"`. Needs etcd too. There is
no kubelet: pods stay pending.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from cases import add_only, run_cases
from waiting import PATIENCE, await_that, check, free_ports

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/kubernetes/milepost"
HELM = pathlib.Path(sys.prefix) / "bin/helm"
ISSUER = "https://kubernetes.default.svc.cluster.local"
ADMIN = "admin-of-a-test"
# Their objects are of kinds that operators bring.
OPERATORS = {"cert-manager", "monitoring"}


def run(*command, fails=False, **more):
    """What it prints, of both kinds."""
    done = subprocess.run([str(part) for part in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=PATIENCE,
                          check=False, **more)
    check((done.returncode != 0) == fails, f"{command}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def for_old_servers(text):
    """A PodDisruptionBudget as servers before 1.21 know it."""
    return re.sub(r"(?m)^apiVersion: policy/v1$", "apiVersion: policy/v1beta1", text)


class Cluster:
    """etcd, an API server and a controller manager, until the end of the case."""

    def __init__(self, options, folder):
        self.options = options
        self.folder = pathlib.Path(folder)
        self.programs = pathlib.Path(options.kubernetes)
        self.running = []

    def __enter__(self):
        run(pathlib.Path(self.options.bin) / "milepost-coordinator", "init-pki",
            self.folder / "pki", "--host", "localhost")
        self.authority = self.folder / "pki/client/ca.crt"
        run("openssl", "genrsa", "-out", self.folder / "accounts.key", "2048")
        (self.folder / "tokens.csv").write_text(f"{ADMIN},admin,1,system:masters\n")
        etcd, peers, port, controllers = free_ports(4)
        self.start("etcd", "etcd", "--data-dir", self.folder / "etcd",
                   "--listen-client-urls", f"http://127.0.0.1:{etcd}",
                   "--advertise-client-urls", f"http://127.0.0.1:{etcd}",
                   "--listen-peer-urls", f"http://127.0.0.1:{peers}")
        self.url = f"https://localhost:{port}"
        tls = self.folder / "pki/coordinator"
        key = self.folder / "accounts.key"
        self.start("api", self.programs / "kube-apiserver",
                   "--etcd-servers", f"http://127.0.0.1:{etcd}", "--bind-address", "127.0.0.1",
                   "--secure-port", port, "--tls-cert-file", tls / "tls.crt",
                   "--tls-private-key-file", tls / "tls.key",
                   "--service-cluster-ip-range", "10.96.0.0/16",
                   "--service-account-issuer", ISSUER, "--service-account-signing-key-file", key,
                   "--service-account-key-file", key, "--authorization-mode", "RBAC",
                   "--token-auth-file", self.folder / "tokens.csv")
        self.config = self.folder / "kubeconfig"
        self.config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {
                "server": self.url, "certificate-authority": str(self.authority)}}],
            "users": [{"name": "it", "user": {"token": ADMIN}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}]}))
        await_that(self.is_ready, "the API server is ready")
        self.start("controllers", self.programs / "kube-controller-manager",
                   "--kubeconfig", self.config, "--service-account-private-key-file", key,
                   "--root-ca-file", self.authority, "--use-service-account-credentials",
                   "--leader-elect=false", "--secure-port", controllers)
        return self

    def __exit__(self, *_):
        for one in reversed(self.running):
            one.kill()
            one.wait()

    def start(self, name, *command):
        log = open(self.folder / f"{name}.log", "w", encoding="utf-8")
        self.running.append(subprocess.Popen([str(part) for part in command], stdout=log,
                                             stderr=subprocess.STDOUT, cwd=self.folder))

    def ask(self, path, body=None):
        request = urllib.request.Request(self.url + path, headers={
            "Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"},
            data=json.dumps(body).encode() if body else None)
        trust = ssl.create_default_context(cafile=self.authority)
        with urllib.request.urlopen(request, timeout=10, context=trust) as answer:
            return answer.read().decode()

    def is_ready(self):
        try:
            return self.ask("/readyz") == "ok"
        except OSError:
            return False

    def kubectl(self, *command, **more):
        return run(self.programs / "kubectl", "--kubeconfig", self.config, *command, **more)

    def token(self, account, audience, seconds=3600):
        return json.loads(self.ask(f"/api/v1/namespaces/ml/serviceaccounts/{account}/token", {
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": [audience], "expirationSeconds": seconds}}))["status"]["token"]


def chart(options, folder):
    """Installed, upgraded and deleted."""
    copy = pathlib.Path(folder) / "chart"
    shutil.copytree(CHART, copy)
    about = copy / "Chart.yaml"
    about.write_text(re.sub(r"(?m)^kubeVersion:.*", 'kubeVersion: ">=1.20.0-0"', about.read_text()))
    for path in copy.glob("templates/*.yaml"):
        path.write_text(for_old_servers(path.read_text()))
    values = [path for path in sorted(CHART.glob("ci/*.yaml")) if path.stem not in OPERATORS]
    with Cluster(options, folder) as cluster:
        def helm(*command):
            return run(HELM, *command, "--kubeconfig", cluster.config)
        for path in values:
            place = ["-n", path.stem]
            cluster.kubectl("create", "namespace", path.stem)
            # The upgrade makes objects, too.
            for command, policies in (("install", "false"), ("upgrade", "true")):
                said = helm(command, "milepost", copy, "-f", path, *place,
                            "--set", f"networkPolicy.enabled={policies}")
                check("STATUS: deployed" in said, said)
            helm("uninstall", "milepost", *place)
            kinds = "statefulset,daemonset,deployment,service,networkpolicy,pdb"
            left = cluster.kubectl("get", kinds, *place, "-o", "name")
            check("milepost" not in left, f"{path.stem}: left: {left}")
    return f"{len(values)} cases"


def plain(options, folder):
    """The manifests for who has no Helm."""
    with Cluster(options, folder) as cluster:
        cluster.kubectl("create", "namespace", "milepost")
        for path in sorted((ROOT / "deploy/kubernetes/plain").glob("*.yaml")):
            copy = pathlib.Path(folder) / path.name
            copy.write_text(for_old_servers(path.read_text()))
            for command in ("apply", "delete"):
                cluster.kubectl(command, "-n", "milepost", "-f", copy)


def service_accounts(options, folder):
    """A pod's token lets a worker in; one that is not for it does not."""
    programs = pathlib.Path(options.bin)
    with Cluster(options, folder) as cluster:
        cluster.kubectl("create", "namespace", "ml")
        for account in ("milepost", "milepost-h100", "other"):
            cluster.kubectl("-n", "ml", "create", "serviceaccount", account)
        pki = cluster.folder / "milepost"
        run(programs / "milepost-coordinator", "init-pki", pki, "--host", "localhost")
        (cluster.folder / "api.token").write_text(cluster.token("milepost", ISSUER))
        address = f"localhost:{free_ports(1)[0]}"
        cluster.start("coordinator", programs / "milepost-coordinator", "--listen", address,
                      "--data-dir", cluster.folder / "data", "--tls", pki / "coordinator",
                      "--worker-authority", pki / "ca", "--service-account-issuer", ISSUER,
                      "--service-account-keys", cluster.url + "/openid/v1/jwks",
                      "--service-account-keys-ca", cluster.authority,
                      "--service-account-keys-token", cluster.folder / "api.token")
        secrets = {"MILEPOST_COORDINATOR": address, "MILEPOST_CA": str(pki / "client/ca.crt"),
                   "MILEPOST_TOKEN": (pki / "client/admin-token").read_text().strip()}

        def milepost(*command):
            return run(programs / "milepost", *command, env={**os.environ, **secrets})

        def answers():
            log = (cluster.folder / "coordinator.log").read_text()
            return "serving on" in log
        await_that(answers, "the coordinator serves")
        milepost("worker", "token", "create", "--pool", "h100", "--service-account",
                 "ml/milepost-h100", "--uses", "0", "--name", "h100-*")

        def worker(name, token):
            path = cluster.folder / f"{name}.token"
            path.write_text(token)
            return [programs / "milepost-worker", "--coordinator", address, "--id", name,
                    "--data-dir", cluster.folder / name, "--join-token-file", path,
                    "--join-authority", pki / "client/ca.crt", "--slots", "1"]
        good = cluster.token("milepost-h100", "milepost")
        for name, token, why in (
                ("h100-1", cluster.token("other", "milepost"), "ml/other"),
                ("h100-2", cluster.token("milepost-h100", ISSUER), "not for the audience milepost"),
                ("gpu-1", good, "is for workers called h100-*"),
                ("h100-3", good[:-8] + "AAAAAAAA", "not signed by the cluster")):
            said = run(*worker(name, token), fails=True)
            check(why in said, said)
        cluster.start("worker", *worker("h100-0", good))
        await_that(lambda: re.search(r"workers/h100-0 +READY", milepost("worker", "list")),
                   "the worker is READY")


CASES = (chart, plain, service_accounts)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubernetes", required=True, type=os.path.abspath,
                        help="the folder with its programs")
    parser.add_argument("--bin", required=True, type=os.path.abspath)
    add_only(parser, CASES)
    options = parser.parse_args()
    missing = [name for name in ("kube-apiserver", "kube-controller-manager", "kubectl")
               if not (pathlib.Path(options.kubernetes) / name).exists()]
    if missing or not shutil.which("etcd"):
        print(f"SKIPPED: there is no {', '.join(missing) or 'etcd'}")
        return SKIPPED
    return run_cases(CASES, options.only, lambda case, folder: case(options, folder))


if __name__ == "__main__":
    sys.exit(main())
