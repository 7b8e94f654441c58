//! Captures that are read from a pipe while they are written, as from `ssh host tcpdump -w -`. No test needs rights.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, PipeWriter, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// Time limit of every wait, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Starts `weir`; returns it, its standard input, and the lines that it prints on standard output and standard error.
fn start(line: &str) -> (Child, PipeWriter, Receiver<String>) {
    let (reader, writer) = io::pipe().expect("a pipe");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(line.split(' ')).env("LC_ALL", "C").stdin(reader);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weir");
    let (sender, lines) = mpsc::channel();
    let outputs: [Box<dyn Read + Send>; 2] =
        [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
    for output in outputs {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.for_each(|line| drop(sender.send(line)));
        });
    }
    (child, writer, lines)
}

/// Waits for a line that contains these words.
fn line_with(lines: &Receiver<String>, words: &str) -> String {
    let begin = Instant::now();
    loop {
        let left = PATIENCE.saturating_sub(begin.elapsed());
        let line = lines.recv_timeout(left).unwrap_or_else(|_| panic!("no line with '{words}'"));
        if line.contains(words) {
            return line;
        }
    }
}

fn interrupt(child: &Child) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
}

fn end(mut child: Child) -> Option<i32> {
    let begin = Instant::now();
    loop {
        match child.try_wait().expect("a child") {
            Some(status) => return status.code(),
            None if begin.elapsed() > PATIENCE => {
                child.kill().expect("it");
                panic!("it does not end");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// The parts of a capture file with two frames: everything before the first frame, and each frame.
fn parts(dir: &Path) -> [Vec<u8>; 3] {
    let read = |frames: u32| {
        let path = dir.join("trace.pcap");
        let line = format!(
            "capture gen:size=64,flows=1,frames={frames} --json --write {}",
            path.display()
        );
        let output: Output =
            Command::new(env!("CARGO_BIN_EXE_weir")).args(line.split(' ')).output().expect("weir");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read(path).expect("a file")
    };
    let file = read(2);
    // A pcapng file consists of blocks. The length of a block is in its second 32-bit word.
    let mut ends = vec![0];
    while let Some(length) =
        file.get(ends[ends.len() - 1] + 4..).and_then(|rest| rest.first_chunk())
    {
        ends.push(ends[ends.len() - 1] + u32::from_le_bytes(*length) as usize);
    }
    let is_frame = |at: usize| file[at..at + 4] == 6_u32.to_le_bytes();
    let frames: Vec<usize> = (0..ends.len() - 1).filter(|&block| is_frame(ends[block])).collect();
    let [first, second] = frames[..] else { panic!("two frames: {frames:?}") };
    [
        file[..ends[first]].to_vec(),
        file[ends[first]..ends[first + 1]].to_vec(),
        file[ends[second]..ends[second + 1]].to_vec(),
    ]
}

#[test]
fn a_pipe_that_brings_nothing_is_waited_for_and_the_wait_can_be_ended() {
    let dir = tempfile::tempdir().expect("a folder");
    let fifo = dir.path().join("fifo").display().to_string();
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    for source in ["file:-".to_owned(), format!("file:{fifo}")] {
        for command in ["capture", "flows"] {
            let (child, _silent, lines) =
                start(&format!("{command} {source} --duration 1h --json"));
            line_with(&lines, "waiting for the first frame");
            interrupt(&child);
            line_with(&lines, "stopped before a capture file began there");
            assert_eq!(end(child), Some(2), "{command} {source}");
        }
    }
}

#[test]
fn a_pipe_that_begins_and_goes_no_further_can_be_ended_too() {
    let dir = tempfile::tempdir().expect("a folder");
    let [beginning, ..] = parts(dir.path());
    let (child, mut writer, lines) = start("capture file:- --json");
    writer.write_all(&beginning[..beginning.len() / 2]).expect("it reads");
    line_with(&lines, "waiting for the first frame");
    interrupt(&child);
    assert_eq!(end(child), Some(2));

    let (child, _silent, lines) = start("capture file:- --duration 2s -q");
    line_with(&lines, "in the time of --duration");
    assert_eq!(end(child), Some(2));
}

#[test]
fn a_named_pipe_whose_writer_brings_nothing_is_an_empty_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let (child, _input, lines) = start(&format!("capture file:{}", fifo.display()));
    line_with(&lines, "waiting for the first frame");
    drop(OpenOptions::new().write(true).open(&fifo).expect("it is read"));
    line_with(&lines, "the file is empty");
    assert_eq!(end(child), Some(2));
}

/// Passes if each frame is printed once it was written into the pipe, without waiting for later data.
fn comes_through(
    child: Child,
    lines: &Receiver<String>,
    mut writer: impl Write,
    dir: &Path,
    ends: Ends,
) {
    let [beginning, first, second] = parts(dir);
    let mut write = |bytes: &[u8]| writer.write_all(bytes).and_then(|()| writer.flush());
    write(&beginning).expect("it reads");
    write(&first).expect("it reads");
    line_with(lines, " IP ");
    // A frame that arrives in pieces is printed once it is complete.
    let (half, rest) = second.split_at(40);
    write(half).expect("it reads");
    std::thread::sleep(Duration::from_millis(200));
    write(rest).expect("it reads");
    line_with(lines, " IP ");
    match ends {
        Ends::Signal => interrupt(&child),
        Ends::Time => {}
        Ends::Writer => drop(writer),
    }
    line_with(lines, "captured");
    assert_eq!(end(child), Some(0));
}

enum Ends {
    Signal,
    Time,
    Writer,
}

#[test]
fn frames_of_standard_input_are_printed_as_they_come() {
    let dir = tempfile::tempdir().expect("a folder");
    for (flags, ends) in
        [("", Ends::Signal), (" --duration 10s", Ends::Time), (" udp", Ends::Writer)]
    {
        let (child, writer, lines) = start(&format!("capture file:- --print{flags}"));
        comes_through(child, &lines, writer, dir.path(), ends);
    }
}

#[test]
fn frames_of_a_named_pipe_are_printed_as_they_come() {
    let dir = tempfile::tempdir().expect("a folder");
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let open = || OpenOptions::new().write(true).open(&fifo).expect("it is read");
    let line = format!("capture file:{} --print udp", fifo.display());
    let (child, _input, lines) = start(&line);
    comes_through(child, &lines, open(), dir.path(), Ends::Writer);

    // A writer may write all frames and close the pipe at once: none is lost.
    let (child, _input, lines) = start(&line);
    let all: Vec<u8> = parts(dir.path()).concat();
    let mut writer: File = open();
    writer.write_all(&all).expect("it is read");
    drop(writer);
    (0..2).for_each(|_| drop(line_with(&lines, " IP ")));
    assert_eq!(end(child), Some(0));
}
