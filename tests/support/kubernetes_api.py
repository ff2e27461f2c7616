"""A stand-in for the API of Kubernetes (fabric8's mock server), which runs the executors that are asked of it here.

The server keeps what it is given and tells watchers of it, as the API does. It checks nothing: no schema, no right, no
quota. A pod's container is a process of this machine, started as Spark's entrypoint.sh starts it in a pod.
"""

import os
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from exactbatch.local.child_process import HOST
from exactbatch.local.java import fetch_jars, find_java

_HOME: Final = Path(pyspark.__file__).parent
_BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


class KubernetesApi:
    """A server with one namespace, in which the pod of the driver runs."""

    def __init__(self, folder: Path, jars: Path, namespace: str, driver: Mapping[str, Any]) -> None:
        """Start the server; executors write their logs into the folder. `driver` is the pod of the driver."""
        self.folder = folder
        self.pods: dict[str, dict[str, Any]] = {}  # of executors, by name, as they were asked for
        self.deleted: set[str] = set()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.image: dict[str, str] = {}
        """The environment of an executor's image, beside that of its pod."""
        fetched = fetch_jars("kubernetes-api", jars, definitions=Path(__file__).parent / "ivy")
        port, self._java = launch_gateway(
            classpath=f"{_HOME}/jars/*:{fetched}/*", java_path=str(find_java()), return_proc=True
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        jvm = self._gateway.jvm
        mock = jvm.io.fabric8.kubernetes.client.server.mock
        web = jvm.io.fabric8.mockwebserver
        server = mock.KubernetesMockServer(
            web.Context(),
            web.MockWebServer(),
            jvm.java.util.HashMap(),
            mock.KubernetesCrudDispatcher(),
            False,
        )
        server.init(jvm.java.net.InetAddress.getByName(HOST), 0)
        self.url = f"http://{HOST}:{server.getPort()}"
        self._client = httpx.Client(base_url=f"{self.url}/api/v1/namespaces/{namespace}")
        self._client.post("/pods", json={"apiVersion": "v1", "kind": "Pod", **driver}).raise_for_status()
        self._ends = threading.Event()
        self._kubelet = threading.Thread(target=self._run_pods, daemon=True)
        self._kubelet.start()

    def kill(self, name: str) -> None:
        """End the process of a pod as a lost node does, and say that the pod failed."""
        self._processes[name].kill()

    def close(self) -> None:
        """End the server and all executors."""
        self._ends.set()
        self._kubelet.join()
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._gateway.shutdown()
        self._java.kill()
        self._java.wait()

    def _run_pods(self) -> None:
        """Start a process for each new pod of an executor, tell its state, and end it when the pod is deleted."""
        while not self._ends.wait(0.2):
            found = self._client.get("/pods", params={"labelSelector": "spark-role=executor"})
            items = {pod["metadata"]["name"]: pod for pod in found.raise_for_status().json()["items"]}
            for name, pod in items.items():
                if name not in self._processes:
                    self.pods[name] = pod
                    self._processes[name] = self._start(name, pod)
                self._tell(name, pod)
            for name in self._processes.keys() - items.keys():
                self.deleted.add(name)
                self._processes[name].kill()

    def _tell(self, name: str, pod: dict[str, Any]) -> None:
        status = self._processes[name].poll()
        phase = "Running" if status is None else "Failed" if status else "Succeeded"
        if pod.get("status", {}).get("phase") == phase:
            return
        state = {"running": {}} if status is None else {"terminated": {"exitCode": abs(status)}}
        container = {"name": pod["spec"]["containers"][0]["name"], "ready": status is None, "state": state}
        told = {"phase": phase, "podIP": HOST, "containerStatuses": [container]}
        # 404: it was deleted in between.
        self._client.put(f"/pods/{name}/status", json={**pod, "status": told})

    def _start(self, name: str, pod: dict[str, Any]) -> subprocess.Popen[bytes]:
        [container] = pod["spec"]["containers"]
        environment = {
            each["name"]: each.get("value", HOST if each["name"].endswith("POD_IP") else name)
            for each in container["env"]
        }
        options = [
            environment[f"SPARK_JAVA_OPT_{n}"] for n in range(99) if f"SPARK_JAVA_OPT_{n}" in environment
        ]
        assert container["args"] == ["executor"]
        command = [
            *(find_java(), *options, f"-Xmx{environment['SPARK_EXECUTOR_MEMORY']}"),
            *("-cp", f"{environment.get('SPARK_CLASSPATH', '')}:{_HOME}/jars/*", _BACKEND),
            *("--driver-url", environment["SPARK_DRIVER_URL"]),
            *("--executor-id", environment["SPARK_EXECUTOR_ID"]),
            *("--cores", environment["SPARK_EXECUTOR_CORES"]),
            *("--app-id", environment["SPARK_APPLICATION_ID"]),
            *("--hostname", HOST),
            *("--resourceProfileId", environment["SPARK_RESOURCE_PROFILE_ID"]),
            *("--podName", name),
        ]
        (folder := self.folder / name).mkdir()
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command,
                cwd=folder,
                env={"SPARK_HOME": str(_HOME), "PATH": os.environ["PATH"], **self.image, **environment},
                stdout=log,
                stderr=log,
            )
