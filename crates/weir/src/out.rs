//! `println!` and its kin, without the panic of the standard ones: whoever reads our output may leave,
//! and a terminal may go away. That is no reason to end a capture with its file half written.

/// As the standard one, but output that nobody takes is let go.
macro_rules! print {
    ($($text:tt)*) => {{
        use ::std::io::Write as _;
        let _ = ::std::write!(::std::io::stdout(), $($text)*);
    }};
}

/// As the standard one, but output that nobody takes is let go.
macro_rules! println {
    () => { print!("\n") };
    ($($text:tt)*) => {{
        use ::std::io::Write as _;
        let _ = ::std::writeln!(::std::io::stdout(), $($text)*);
    }};
}

/// As the standard one, but output that nobody takes is let go. In one piece: standard error has no
/// buffer of its own.
macro_rules! eprint {
    ($($text:tt)*) => {{
        use ::std::io::Write as _;
        let _ = ::std::io::stderr().write_all(::std::format!($($text)*).as_bytes());
    }};
}

/// As the standard one, but output that nobody takes is let go.
macro_rules! eprintln {
    ($($text:tt)*) => { eprint!("{}\n", ::std::format_args!($($text)*)) };
}
