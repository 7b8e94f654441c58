//! Pods of Kubernetes, found by files that the kubelet leaves on the node, with any container runtime.
//!
//! The kubelet keeps the logs of a pod in `/var/log/pods/NAMESPACE_NAME_UID`, and its runtime puts the pod's processes
//! into a cgroup whose path contains `kubepods` and `pod<UID>`. So this needs no request to a runtime, which would need
//! gRPC.
//!
//! Source: kubernetes, `BuildPodLogsDirectory` (pkg/kubelet/kuberuntime/helpers.go) and `podCgroupNamePrefix`
//! (pkg/kubelet/cm/pod_container_manager_linux.go); with the systemd driver a UID has `_` for `-` there.

use std::fs;
use std::io;
use std::path::PathBuf;

use weir_capture::CaptureError;
use weir_capture::kernel::netns::{Located, NetnsName, Owner};

use crate::limits::NAMES_IN_ERROR_MAX;

/// Prefix of a pod's name.
pub const PREFIX: &str = "pod:";

/// Returns the name of the network namespace of a pod, given as `NAME`, or as `NAMESPACE/NAME` if several namespaces
/// have a pod of this name.
///
/// # Errors
/// `pod` cannot be the name of a pod. The text contains a remedy.
pub fn netns(pod: &str) -> Result<NetnsName, String> {
    // A DNS subdomain. Source: kubernetes, "Object Names and IDs".
    let is_name = |name: &str| {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        !name.is_empty() && name.chars().all(allowed) && !name.starts_with(['-', '.'])
    };
    if pod.split('/').count() > 2 || !pod.split('/').all(is_name) {
        return Err(format!(
            "'{PREFIX}{pod}': write {PREFIX}NAME, {PREFIX}NAMESPACE/NAME or {PREFIX}NAMESPACE/NAME/eth0, with the \
             names that `kubectl get pods -A` shows"
        ));
    }
    Ok(NetnsName::located(PREFIX, pod, |pod| Node::this().locate(pod)))
}

/// Returns the name and the id of the pod to which a process with this `/proc/PID/cgroup` belongs.
pub(crate) fn of_cgroup(cgroup: &str) -> Option<(String, String)> {
    let pod = Node::this().pod_of(cgroup)?;
    Some((pod.full_name(), pod.uid))
}

/// The folders of a node that are searched.
struct Node {
    logs: PathBuf,
    proc: PathBuf,
}

/// A pod, parsed from the name of its log folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pod {
    namespace: String,
    name: String,
    uid: String,
}

impl Pod {
    fn of_folder(folder: &str) -> Option<Pod> {
        // None of the three parts contains an underscore.
        let mut parts = folder.split('_').map(str::to_owned);
        let pod = Pod { namespace: parts.next()?, name: parts.next()?, uid: parts.next()? };
        (parts.next().is_none() && !pod.uid.is_empty()).then_some(pod)
    }

    /// Returns `NAMESPACE/NAME`.
    fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Returns whether a process with this `/proc/PID/cgroup` belongs to the pod.
    fn has(&self, cgroup: &str) -> bool {
        let own = [format!("pod{}", self.uid), format!("pod{}", self.uid.replace('-', "_"))];
        cgroup.lines().filter(|line| line.contains("kubepods")).any(|line| {
            // `/kubepods/burstable/podUID/..` or `/kubepods-burstable-podUID.slice/..`.
            line.split('/').any(|part| {
                let part = part.strip_suffix(".slice").unwrap_or(part);
                let part = part
                    .rsplit_once("-pod")
                    .map_or_else(|| part.to_owned(), |(_, uid)| format!("pod{uid}"));
                own.contains(&part)
            })
        })
    }
}

impl Node {
    fn this() -> Node {
        Node { logs: "/var/log/pods".into(), proc: "/proc".into() }
    }

    fn locate(&self, asked: &str) -> Result<Located, CaptureError> {
        let missing =
            |why: String| CaptureError::NoOwner { owner: format!("{PREFIX}{asked}"), why };
        let pods = self.pods().map_err(|error| {
            missing(match error.kind() {
                io::ErrorKind::NotFound => format!(
                    "{} is not there, so this is no node of Kubernetes; name a container (docker:NAME) or a \
                     process (netns:PID/eth0)",
                    self.logs.display()
                ),
                _ => format!("{} cannot be read: {error}", self.logs.display()),
            })
        })?;
        let fits = |pod: &&Pod| match asked.split_once('/') {
            Some((namespace, name)) => {
                (pod.namespace.as_str(), pod.name.as_str()) == (namespace, name)
            }
            None => pod.name == asked,
        };
        // Folders of deleted pods stay for a while. Only running pods have processes.
        let mut found: Vec<(&Pod, Vec<u32>)> =
            pods.iter().filter(fits).map(|pod| (pod, self.processes(pod))).collect();
        let is_known = !found.is_empty();
        found.retain(|(_, processes)| !processes.is_empty());
        match &found[..] {
            [(pod, processes)] => self.located(asked, pod, processes),
            [] if is_known => Err(missing("the pod does not run on this node".to_owned())),
            [] => Err(missing(self.why(&pods))),
            several => {
                let names = several.iter().map(|(pod, _)| format!("{PREFIX}{}", pod.full_name()));
                let names: Vec<String> = names.collect();
                Err(CaptureError::Options(format!(
                    "{PREFIX}{asked}: several pods have this name; write {}",
                    names.join(" or ")
                )))
            }
        }
    }

    fn located(&self, asked: &str, pod: &Pod, processes: &[u32]) -> Result<Located, CaptureError> {
        // The pause process holds the pod's namespaces, and lives as long as the pod.
        let is_pause = |pid: &&u32| {
            fs::read_to_string(self.proc.join(format!("{pid}/comm")))
                .is_ok_and(|name| name.trim() == "pause")
        };
        let pid = *processes.iter().find(is_pause).unwrap_or(&processes[0]);
        let path = self.proc.join(format!("{pid}/ns/net"));
        let of_host = fs::read_link(self.proc.join("1/ns/net")).ok();
        if of_host.is_some() && fs::read_link(&path).ok() == of_host {
            return Err(CaptureError::Options(format!(
                "{PREFIX}{asked}: the pod has the host's network and no interface of its own; capture the host's, \
                 such as eth0"
            )));
        }
        let owner = Owner {
            kind: "pod",
            name: pod.full_name(),
            id: Some(pod.uid.clone()),
            pid: Some(pid),
            ..Owner::default()
        };
        Ok(Located { path, owner })
    }

    /// Returns the pod to which a process with this `/proc/PID/cgroup` belongs.
    fn pod_of(&self, cgroup: &str) -> Option<Pod> {
        if !cgroup.contains("kubepods") {
            return None;
        }
        self.pods().ok()?.into_iter().find(|pod| pod.has(cgroup))
    }

    fn why(&self, pods: &[Pod]) -> String {
        let running = pods.iter().filter(|pod| !self.processes(pod).is_empty());
        let names: Vec<String> = running.take(NAMES_IN_ERROR_MAX).map(Pod::full_name).collect();
        if names.is_empty() {
            return "no such pod on this node, and none runs here".to_owned();
        }
        format!("no such pod on this node; among those that run: {}", names.join(", "))
    }

    fn pods(&self) -> io::Result<Vec<Pod>> {
        let mut pods: Vec<Pod> = fs::read_dir(&self.logs)?
            .filter_map(|entry| Pod::of_folder(entry.ok()?.file_name().to_str()?))
            .collect();
        pods.sort();
        Ok(pods)
    }

    /// Returns the processes of a pod, lowest ids first. A process that ends meanwhile is left out.
    fn processes(&self, pod: &Pod) -> Vec<u32> {
        let of_pod = |entry: io::Result<fs::DirEntry>| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let cgroup = fs::read_to_string(self.proc.join(format!("{pid}/cgroup"))).ok()?;
            pod.has(&cgroup).then_some(pid)
        };
        let mut processes: Vec<u32> =
            fs::read_dir(&self.proc).into_iter().flatten().filter_map(of_pod).collect();
        processes.sort_unstable();
        processes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const UID: &str = "1b2c3d4e-0000-4000-8000-00000000000a";

    /// A node with these folders of logs and these processes: number, cgroup, command, network namespace.
    fn node(folder: &Path, logs: &[&str], processes: &[(u32, &str, &str, &str)]) -> Node {
        let node = Node { logs: folder.join("pods"), proc: folder.join("proc") };
        for log in logs {
            fs::create_dir_all(node.logs.join(log)).unwrap();
        }
        for (pid, cgroup, comm, netns) in processes {
            let process = node.proc.join(pid.to_string());
            fs::create_dir_all(process.join("ns")).unwrap();
            fs::write(process.join("cgroup"), cgroup).unwrap();
            fs::write(process.join("comm"), format!("{comm}\n")).unwrap();
            std::os::unix::fs::symlink(netns, process.join("ns/net")).unwrap();
        }
        node
    }

    #[test]
    fn a_pod_is_found_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let systemd = format!(
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/cri-containerd-1.scope\n",
            UID.replace('-', "_")
        );
        let cgroupfs = "11:cpu:/kubepods/besteffort/pod77/c1\n10:memory:/\n";
        let node = node(
            folder.path(),
            &[
                &format!("default_web_{UID}"),
                "default_web_gone",
                "test_db_77",
                "test_web_78",
                "kube-system_p_79",
                "x",
            ],
            &[
                (1, "0::/init.scope\n", "systemd", "net:[1]"),
                (40, &systemd, "nginx", "net:[2]"),
                (50, &systemd, "pause", "net:[2]"),
                (60, cgroupfs, "postgres", "net:[3]"),
                (70, "0::/kubepods/pod79/c\n", "proxy", "net:[1]"),
                (80, "0::/kubepods/pod777/c\n", "other", "net:[4]"),
            ],
        );
        let found = node.locate("web").unwrap();
        assert_eq!(found.path, folder.path().join("proc/50/ns/net"));
        assert_eq!(
            (found.owner.name.as_str(), found.owner.id.as_deref()),
            ("default/web", Some(UID))
        );
        assert_eq!(node.locate("test/db").unwrap().owner.pid, Some(60));
        for (asked, way) in [
            ("test/web", "does not run"),
            ("nothing", "among those that run: default/web, kube-system/p, test/db"),
            ("p", "capture the host's"),
        ] {
            let error = node.locate(asked).unwrap_err().to_string();
            assert!(error.contains(way) && error.contains(asked), "{error}");
        }
    }

    #[test]
    fn a_name_of_several_pods_needs_the_namespace() {
        let folder = tempfile::tempdir().unwrap();
        let processes = [
            (5, "0::/kubepods/pod1/c\n", "a", "net:[2]"),
            (6, "0::/kubepods/pod2/c\n", "b", "net:[3]"),
        ];
        let node = node(folder.path(), &["one_web_1", "two_web_2"], &processes);
        let error = node.locate("web").unwrap_err().to_string();
        assert!(error.contains("write pod:one/web or pod:two/web"), "{error}");
        assert_eq!(node.locate("two/web").unwrap().owner.pid, Some(6));
    }

    #[test]
    fn a_machine_without_kubernetes_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let error = node(folder.path(), &[], &[]).locate("web").unwrap_err().to_string();
        assert!(
            error.contains("no node of Kubernetes") && error.contains("docker:NAME"),
            "{error}"
        );
    }

    #[test]
    fn names_that_are_none_of_a_pod_are_refused() {
        for bad in ["", "/", "a/", "/a", "..", "a/../b", "a/b/c", "A", "a_b"] {
            assert!(netns(bad).unwrap_err().contains("kubectl get pods"), "{bad}");
        }
        assert_eq!(netns("default/web-0").unwrap().to_string(), "pod:default/web-0");
    }
}
