//! The command line of `weir pages`.

use std::path::PathBuf;

use clap::Args;

/// `weir pages`.
#[derive(Args, Debug)]
pub struct PagesArgs {
    /// The directory that takes them; it must be there
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}
