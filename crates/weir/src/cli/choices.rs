//! Flag values that are names.

use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;

use weir_capture::engines::ENGINES;
use weir_capture::engines::declaration::Declaration;

/// An engine of interfaces or devices by name; without one, `auto` chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineName(pub Option<&'static Declaration>);

impl EngineName {
    /// Chooses the best engine that works.
    pub const AUTO: EngineName = EngineName(None);
}

impl ValueEnum for EngineName {
    fn value_variants<'a>() -> &'a [EngineName] {
        static ALL: LazyLock<Vec<EngineName>> = LazyLock::new(|| {
            let live = ENGINES.into_iter().filter(|engine| engine.is_live());
            std::iter::once(EngineName::AUTO).chain(live.map(|one| EngineName(Some(one)))).collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self.0 {
            None => PossibleValue::new("auto").help("The best that works here, and why"),
            Some(engine) => PossibleValue::new(engine.name).help(engine.purpose),
        })
    }
}

/// Hooks by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HookName {
    /// TC ingress and egress: passive, both directions
    Tc,
    /// XDP: in the driver, received frames only
    Xdp,
}

/// Modes of AF_XDP sockets by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum XdpModeName {
    /// Zero-copy if the driver supports it
    Best,
    /// The kernel copies each frame
    Copy,
    /// Zero-copy or an error
    ZeroCopy,
}

/// Sources of stamps by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TimestampName {
    /// When the frame arrives at the hook
    Hook,
    /// When the frame is copied
    Copy,
    /// The driver's stamp, if that is a time of day
    Nic,
}

/// Ways to attach TC programs by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TcAttachName {
    /// tcx links where the kernel has them
    Best,
    /// A clsact filter, as on kernels before 6.6
    Clsact,
}

/// Directions by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DirectionName {
    /// Received frames
    In,
    /// Sent frames
    Out,
    /// Either
    #[value(alias = "inout")]
    Both,
}
