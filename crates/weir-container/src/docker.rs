//! Containers of Docker and podman, which have the same API.
//!
//! Source: Docker Engine API v1.41, "Inspect a container" and "List containers"; podman answers these paths as Docker
//! does.

use std::path::PathBuf;
use std::sync::mpsc::channel;

use serde::Deserialize;
use weir_capture::CaptureError;
use weir_capture::error::error_text;
use weir_capture::kernel::netns::{Located, NetnsName, Owner, netns_of_process};

use crate::api::{self, ApiError};
use crate::limits::{NAME_TIME_MAX, NAMES_IN_ERROR_MAX};

/// Prefix of a container's name.
pub const PREFIX: &str = "docker:";

/// The sockets of Docker and of podman.
const SOCKETS: [&str; 2] = ["/var/run/docker.sock", "/run/podman/podman.sock"];

/// Returns the name of the network namespace of the container with this name or id. The container's process is looked
/// up each time the namespace is opened.
///
/// # Errors
/// `container` cannot be the name of a container. The text contains a remedy.
pub fn netns(container: &str) -> Result<NetnsName, String> {
    // Other characters could change the meaning of a path of the API. Source: moby, `RestrictedNameChars`.
    let is_valid = container.starts_with(|c: char| c.is_ascii_alphanumeric())
        && container.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
    if !is_valid {
        return Err(format!(
            "'{PREFIX}{container}': write {PREFIX}NAME or {PREFIX}NAME/eth0, with the name or id that \
             `docker ps` shows"
        ));
    }
    Ok(NetnsName::located(PREFIX, container, |container| Engines::of_machine()?.locate(container)))
}

/// The sockets of the engines, in the order in which they are asked.
struct Engines {
    sockets: Vec<PathBuf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Container {
    id: String,
    name: String,
    state: State,
    #[serde(default)]
    host_config: HostConfig,
    #[serde(default)]
    config: Config,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    running: bool,
    pid: u32,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct HostConfig {
    network_mode: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Config {
    image: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    #[serde(default)]
    names: Vec<String>,
}

impl Engines {
    fn of_machine() -> Result<Engines, CaptureError> {
        Engines::of(std::env::var("DOCKER_HOST").ok().as_deref())
    }

    fn of(docker_host: Option<&str>) -> Result<Engines, CaptureError> {
        let mut sockets = SOCKETS.map(PathBuf::from).to_vec();
        if let Some(host) = docker_host.filter(|host| !host.is_empty()) {
            let path = host.strip_prefix("unix://").ok_or_else(|| {
                CaptureError::Options(format!(
                    "DOCKER_HOST is {host}: containers are captured on the machine that they run on; \
                     set it to unix:///PATH, or unset it"
                ))
            })?;
            sockets[0] = path.into();
        }
        Ok(Engines { sockets })
    }

    /// Locates a container by the first engine that knows it.
    fn locate(&self, name: &str) -> Result<Located, CaptureError> {
        let path = format!("/containers/{name}/json");
        let mut refusals = Vec::new();
        for socket in &self.sockets {
            match api::get::<Container>(socket, &path) {
                Ok(container) => return located(name, container),
                Err(refusal) => refusals.push(refusal),
            }
        }
        Err(no_owner(name, self.why(&refusals)))
    }

    /// Returns the name and image of the container with this id, from the first engine that knows it.
    fn describe(&self, id: &str) -> Option<(String, Option<String>)> {
        let path = format!("/containers/{id}/json");
        let answers = self.sockets.iter().map(|socket| api::get::<Container>(socket, &path));
        let container = answers.flatten().next()?;
        let image = Some(container.config.image).filter(|image| !image.is_empty());
        Some((bare(&container.name), image))
    }

    /// Explains why no engine knows a container.
    fn why(&self, refusals: &[ApiError]) -> String {
        let is_absent = |refusal: &ApiError| matches!(refusal, ApiError::NoEngine { .. });
        if refusals.iter().all(is_absent) {
            let sockets: Vec<_> =
                self.sockets.iter().map(|socket| socket.display().to_string()).collect();
            return format!(
                "no container engine answers at {}; start it, name its socket with \
                 DOCKER_HOST=unix:///PATH, or capture netns:PID/eth0 with a process of the container",
                sockets.join(" or ")
            );
        }
        let failed =
            |refusal: &&ApiError| !is_absent(refusal) && !matches!(refusal, ApiError::NotFound);
        if let Some(failure) = refusals.iter().find(failed) {
            return error_text(failure);
        }
        let names = self.running();
        match names.split_at_checked(NAMES_IN_ERROR_MAX) {
            _ if names.is_empty() => "no such container, and none runs".to_owned(),
            Some((first, more)) if !more.is_empty() => {
                format!(
                    "no such container; these run: {} and {} more",
                    first.join(", "),
                    more.len()
                )
            }
            _ => format!("no such container; these run: {}", names.join(", ")),
        }
    }

    /// Returns the names of the running containers.
    fn running(&self) -> Vec<String> {
        let listed = |socket: &PathBuf| {
            api::get::<Vec<Listed>>(socket, "/containers/json").unwrap_or_default()
        };
        let all = self.sockets.iter().flat_map(listed);
        // A container's further names, which have a second slash, are those of links.
        let is_own = |name: &String| !name.trim_start_matches('/').contains('/');
        let name = |listed: Listed| listed.names.into_iter().find(is_own);
        let mut names: Vec<String> = all.filter_map(name).map(|name| bare(&name)).collect();
        names.sort();
        names
    }
}

/// Returns the name and image of the container with this id, if an engine answers within `NAME_TIME_MAX`.
pub(crate) fn describe(id: &str) -> Option<(String, Option<String>)> {
    let (say, said) = channel();
    let id = id.to_owned();
    // A hung engine may block a thread that connects to it without limit, so another thread asks.
    let asking = move || {
        let engines = Engines::of_machine().ok();
        let _ = say.send(engines.and_then(|engines| engines.describe(&id)));
    };
    std::thread::Builder::new().name("weir-name".into()).spawn(asking).ok()?;
    said.recv_timeout(NAME_TIME_MAX).ok()?
}

fn bare(name: &str) -> String {
    name.strip_prefix('/').unwrap_or(name).to_owned()
}

fn located(asked: &str, container: Container) -> Result<Located, CaptureError> {
    let Container { id, name, state, host_config, config } = container;
    let name = bare(&name);
    if host_config.network_mode == "host" {
        return Err(CaptureError::Options(format!(
            "{PREFIX}{asked}: the container has the host's network and no interface of its own; capture the host's, \
             such as eth0"
        )));
    }
    // The engine returns process id 0 for a container that does not run. Other ids are those of the engine's PID
    // namespace.
    if !state.running || state.pid == 0 {
        return Err(no_owner(
            asked,
            format!("the container does not run; `docker start {name}` starts it"),
        ));
    }
    let owner = Owner {
        kind: "container",
        name,
        id: Some(id),
        image: Some(config.image).filter(|image| !image.is_empty()),
        pid: Some(state.pid),
        ..Owner::default()
    };
    Ok(Located { path: netns_of_process(state.pid), owner })
}

fn no_owner(name: &str, why: String) -> CaptureError {
    CaptureError::NoOwner { owner: format!("{PREFIX}{name}"), why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::thread;

    /// An engine that answers each path from a list, and any other with status 404; for as long as the process runs.
    fn engine(
        folder: &Path,
        name: &str,
        answers: &'static [(&'static str, &'static str)],
    ) -> PathBuf {
        let socket = folder.join(name);
        let listener = UnixListener::bind(&socket).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = [0; 512];
                let length = stream.read(&mut request).unwrap();
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                let path = request.split(' ').nth(1).unwrap_or_default();
                let answer = answers.iter().find(|(of, _)| *of == path);
                let (status, body) =
                    answer.map_or(("404 Not Found", "{}"), |(_, body)| ("200 OK", *body));
                let _ = write!(
                    stream,
                    "HTTP/1.0 {status}\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        socket
    }

    const ANSWERS: &[(&str, &str)] = &[
        (
            "/containers/web/json",
            r#"{"Id":"3f2a91c0d7e4ffff","Name":"/web","State":{"Running":true,"Pid":17,"Status":"running"},
                "HostConfig":{"NetworkMode":"bridge"},"Config":{"Image":"nginx:1"},"Unknown":[1]}"#,
        ),
        (
            "/containers/3f2a/json",
            r#"{"Id":"3f2a91c0d7e4ffff","Name":"/web","State":{"Running":true,"Pid":17}}"#,
        ),
        ("/containers/off/json", r#"{"Id":"1","Name":"/off","State":{"Running":false,"Pid":0}}"#),
        (
            "/containers/host/json",
            r#"{"Id":"1","Name":"/host","State":{"Running":true,"Pid":5},"HostConfig":{"NetworkMode":"host"}}"#,
        ),
        ("/containers/odd/json", r#"{"Id":"1","Name":"/odd","State":{"Running":true,"Pid":-1}}"#),
        ("/containers/json", r#"[{"Names":["/web"]},{"Names":["/db","/web/db"]},{"Names":[]}]"#),
    ];

    #[test]
    fn a_container_is_found_by_name_and_by_id() {
        let folder = tempfile::tempdir().unwrap();
        let engines = Engines { sockets: vec![engine(folder.path(), "docker", ANSWERS)] };
        let found = engines.locate("web").unwrap();
        assert_eq!(found.path, Path::new("/proc/17/ns/net"));
        assert_eq!(found.owner.to_string(), "container web (3f2a91c0d7e4), image nginx:1");
        assert_eq!(found.owner.pid, Some(17));
        assert_eq!(engines.locate("3f2a").unwrap().owner.name, "web");
    }

    #[test]
    fn podman_is_asked_where_docker_has_no_such_container_or_is_not_there() {
        const OF_DOCKER: &[(&str, &str)] = &[("/containers/json", r#"[{"Names":["/other"]}]"#)];
        let folder = tempfile::tempdir().unwrap();
        let podman = engine(folder.path(), "podman", ANSWERS);
        let docker = engine(folder.path(), "docker", OF_DOCKER);
        for first in [docker.clone(), folder.path().join("none")] {
            let engines = Engines { sockets: vec![first, podman.clone()] };
            assert_eq!(engines.locate("web").unwrap().owner.pid, Some(17));
        }
        let engines = Engines { sockets: vec![docker, podman] };
        let error = engines.locate("webb").unwrap_err().to_string();
        assert_eq!(error, "docker:webb: no such container; these run: db, other, web");
    }

    #[test]
    fn errors_say_the_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let engines = Engines { sockets: vec![engine(folder.path(), "docker", ANSWERS)] };
        for (name, way) in [
            ("off", "`docker start off`"),
            ("host", "capture the host's"),
            ("odd", "this is not the answer of a container engine"),
        ] {
            let error = error_text(&engines.locate(name).unwrap_err());
            assert!(
                error.starts_with(&format!("docker:{name}: ")) && error.contains(way),
                "{error}"
            );
        }
        let nobody = Engines { sockets: vec![folder.path().join("a"), folder.path().join("b")] };
        let error = nobody.locate("web").unwrap_err().to_string();
        assert!(error.contains("/a or ") && error.contains("DOCKER_HOST=unix:///PATH"), "{error}");
    }

    #[test]
    fn the_socket_of_docker_host_stands_in_for_dockers() {
        let sockets = |host| Engines::of(host).map(|engines| engines.sockets);
        assert_eq!(sockets(None).unwrap()[0], Path::new(SOCKETS[0]));
        assert_eq!(sockets(Some("")).unwrap()[0], Path::new(SOCKETS[0]));
        assert_eq!(sockets(Some("unix:///run/x.sock")).unwrap()[0], Path::new("/run/x.sock"));
        assert_eq!(sockets(Some("unix:///run/x.sock")).unwrap()[1], Path::new(SOCKETS[1]));
        assert!(sockets(Some("tcp://1.2.3.4:5")).unwrap_err().to_string().contains("unix:///PATH"));
    }

    #[test]
    fn names_that_would_change_the_request_are_refused() {
        for bad in ["", "a b", "../x", "a?b", "a%2f", "a\r\nX: y", "-a", "ü"] {
            assert!(netns(bad).unwrap_err().contains("docker ps"), "{bad:?}");
        }
        assert_eq!(netns("web_1.a-b").unwrap().to_string(), "docker:web_1.a-b");
    }
}
