//! Checks of a configuration that need this machine: its sources, engines and CPUs.

use weir_frame::pcapng::LINKTYPE_ETHERNET;

use crate::config::{Config, least_bpf_mib};
use crate::missing::{RIGHTS_FROM, WHO_MAY, lacks, missing};
use crate::resolved::{FilterError, Resolver, compiled};

/// Checks a configuration: fails with the first error, or returns warnings.
pub(crate) fn check(config: &Config, resolve: &Resolver) -> Result<Vec<String>, String> {
    let mut warnings = Vec::new();
    for (name, source) in &config.sources {
        let wrong = |what: String| format!("sources.{name}: {what}");
        let resolved = resolve(name, source).map_err(wrong)?;
        let least = least_bpf_mib();
        if resolved.may_fill_bpf_arrays() && source.ring_mib() < least {
            return Err(wrong(format!(
                "ring_mib is {least} at least on this machine: the engine bpf has a ring of 4 MiB for each CPU that \
                 there may be; leave it out, or say engine = \"af_packet\""
            )));
        }
        if source.allows_nobody() {
            warnings.push(wrong(format!("nobody may open it; {WHO_MAY}")));
        }
        if let Some(filter) = source.own_filter() {
            let link_type = resolved.link_type().unwrap_or(LINKTYPE_ETHERNET);
            match compiled(filter, link_type) {
                // A name server may answer later. The filter is compiled again each time the source
                // is opened.
                Err(FilterError::Expression(error)) if error.is_unknown_host() => {
                    warnings.push(wrong(format!(
                        "its filter: {error}; until it is known nobody can open it"
                    )));
                }
                Err(error) => return Err(wrong(format!("its filter: {error}"))),
                Ok(_) => {}
            }
        }
        if let Some(cpus) = &source.cpus {
            let parsed = cpus.parse::<weir_probe::CpuList>();
            let checked = parsed.and_then(|cpus| cpus.check());
            checked.map_err(|what| wrong(format!("cpus = {what}")))?;
        }
        let missing = missing(&resolved.target);
        warnings
            .extend(missing.map(|what| wrong(format!("{what}; nobody can open it until then"))));
        let lacks = lacks(&resolved.target);
        warnings.extend(lacks.map(|right| {
            wrong(format!("nobody can open it: the daemon lacks {right}; {RIGHTS_FROM}"))
        }));
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use weir_capture::engines::auto::EngineRequest;
    use weir_capture::engines::declaration::Target;
    use weir_capture::engines::of_generated;

    use super::*;
    use crate::config::SourceConfig;
    use crate::resolved::Resolved;

    fn warnings(text: &str) -> Vec<String> {
        let resolve = |_: &str, _: &SourceConfig| {
            let engine = Some(of_generated());
            let request = EngineRequest { engine, ..EngineRequest::default() };
            let target = Target::Text(String::new());
            Ok::<_, String>(Resolved { target, request, owner_finder: None })
        };
        check(&Config::parse(text).unwrap(), &resolve).unwrap()
    }

    #[test]
    fn a_source_that_nobody_may_open_is_told() {
        let told = warnings("[sources.noone]");
        assert_eq!(
            told,
            ["sources.noone: nobody may open it; add users, groups or everybody = true"]
        );
        for allowed in ["users = [7]", "groups = [7]", "everybody = true"] {
            assert!(warnings(&format!("[sources.some]\n{allowed}")).is_empty(), "{allowed}");
        }
    }
}
