//! Explanations of the page's sections and columns.

/// The name of a section, and its description.
const SECTIONS: [(&str, &str); 29] = [
    (
        "wire",
        "Capture off one veth pair at all that the generator can send. The kernel half of every capture runs in \
         the generator's softirq on its CPU, so a cheaper tool is offered more: what counts is the rate of \
         frames kept, beside the loss. All rows of a size were measured in turn in the same rounds. \
         tcpdump, dumpcap, netsniff-ng and xdpdump write to /dev/null; DPDK's test program receives and frees, \
         keeps no frame and stamps none; weir copies every frame, stamped, into shared memory, where its \
         null monitor counts it.",
    ),
    (
        "before",
        "Another build of weir and this one, one right after the other on the same veth pair as wire. The ratio is \
         this build's rate over the other's.",
    ),
    (
        "zero-loss",
        "The highest offered rate at which not one frame was lost: throughput as in RFC 2544, 26.1, found by \
         halving the interval; trial length, repetitions and resolution are in the notes on top. A rate that \
         the generator was too held up to offer is not passed. Behind the rate stands what was lost at the rate just \
         above. A trial shorter than a buffer takes to fill flatters whoever has the buffer; all have 64 MiB.",
    ),
    (
        "latency",
        "From the time stamp that the generator writes into a frame as it makes it, to weir's consumer reading \
         the same clock when it comes to that frame in its own copy: link, engine, ring, waking and batching \
         are in it. The bar reaches from p50 to p99.9 on a logarithmic scale, with lines at p90 and p99 and \
         a mark at the longest. Peers hand frames to no code of ours, so they have no row.",
    ),
    (
        "iperf3",
        "What watching costs the watched: TCP over the veth pair, bare, and while its receiving end is \
         captured. With -b 10G the sender has CPU to spare.",
    ),
    (
        "memory",
        "The ring alone: frames made in memory, one writer, readers on other CPUs. No link is involved.",
    ),
    (
        "command",
        "weir capture gen:, started as anybody would, beside the bench's own writer and reader on a ring of the same \
         size. The bench's writer waits for its reader; what the program laps is lost.",
    ),
    (
        "tools",
        "Tools that know nothing of Weir, on a feed of weir serve: tcpdump with libweirpcap loaded into it, and on an \
         interface that weir attach feeds, beside tcpdump's own socket on the captured interface.",
    ),
    (
        "suricata",
        "Suricata 7 with one thread on one CPU, on a trace of HTTP that is sent faster than it reads: by its own \
         AF_PACKET socket, by libpcap, with libweirpcap loaded into it, and on an interface that weir attach feeds. \
         Kept are the frames that it decoded. kernel is the ring of its own socket or what libpcap dropped, lapped \
         what was overwritten in Weir's rings before it was read.",
    ),
    (
        "flows",
        "The flow monitor (weir flows) beside the null monitor (weir capture) at the same hook, which only counts: \
         the ratio is what counting by flow costs. In turn with both, softflowd and Suricata 7's flow log on one \
         thread. Frames are of one flow, of a thousand, or each of a flow of its own, and then flows end early to \
         make room for others: exports are measured there.",
    ),
    (
        "serve-costs",
        "How long a client waits for capture.open, for rings that others read and for rings of its own; and the CPU \
         time of the daemon and its clients while nothing comes.",
    ),
    (
        "serve",
        "weir serve and processes that read its feeds, beside as many tcpdumps on the same interface. The rate is that \
         of the reader which kept least.",
    ),
    (
        "guests-costs",
        "A ring that is full and stays as it is, read again and again in a guest; the time from opening a feed to its \
         first frame; what a filter that no frame meets leaves in rings; and what a guest without feeds does while \
         another one has frames.",
    ),
    (
        "guests",
        "weir capture in virtual machines, of what the host's daemon captures: the host's ring in the guest's memory. \
         Beside it the same traffic by virtio-net, a tap and a bridge, counted by the interface of the same guest. The \
         rate is that of the consumer which kept least; relay is what the copying into the guest's ring was too slow \
         for, lapped what the guest's reader was. An emulated guest's figures are not those of one that runs by KVM.",
    ),
    (
        "recorder",
        "The recorder beside fio on the same file system in the same rounds: bytes of records that can be extracted \
         again, by the time until the last of them is written. The generator in its process offers a twentieth more \
         than fio wrote, so frames are lapped where the recorder is not faster than that; and then a tenth less.",
    ),
    (
        "to-disk",
        "Frames of 64 and 1518 B from a link into files on the same disk, by the recorder, tcpdump, dumpcap and \
         netsniff-ng, a tenth below what fio wrote just before; and the recorder for a minute, below what the disk \
         takes and above, with a second consumer beside it.",
    ),
    (
        "store",
        "One flow of 100 frames among a million flows, out of 10 GB that the recorder has written: seconds of weir \
         extract, with its index, beside tcpdump with the same filter on each file.",
    ),
    (
        "files",
        "Programs that copy a trace to another file, or to /dev/null: the frames of the trace by the time of the whole \
         run, start and end included. Both files are in memory.",
    ),
    (
        "readers",
        "The writer's time a frame while readers that keep up at a fixed rate read the same ring.",
    ),
    (
        "af_xdp, programs",
        "The time of one run of each program at XDP, as the kernel measures it: a read of its clock is in each.",
    ),
    (
        "af_xdp",
        "The engine af_xdp beside DPDK's driver of that name, which only receives: as wire, in turn. With the copier's \
         stamps the program at XDP does no more than DPDK's.",
    ),
    (
        "copiers",
        "Threads that share one synthetic RX ring which is never empty: how the copying half of \
                 af_xdp scales.",
    ),
    (
        "filter, user space",
        "CPU time of one verdict: a filter's machine code, the same question written in Rust, and its bytecode in \
         libpcap's interpreter and weir's own, over the same 256 frames.",
    ),
    (
        "filter",
        "What could be sent while a program took the frames: filters run in the sender's softirq, on its CPU. So \
         the value is the rate sent, not kept. Every frame is a flow of its own, and UDP; a filter that rejects \
         all is tcp port 80, and 16 feeds share the source ports. The bare program has two instructions.",
    ),
    (
        "wake-ups",
        "Voluntary context switches a second of a capture while its link is silent and while a thousand frames a \
         second come, and the latest of frames that came one by one, from the generator's stamp to the consumer.",
    ),
    (
        "print",
        "Frames as lines of text, beside tcpdump -nn: the CPU time of each at a rate that both can keep up with, and \
         the frames that did not become a line; the time from the start of the program to its first line; and the \
         CPU time for frames of mixed sizes for a minute, printed and written to /dev/null, beside tcpdump.",
    ),
    (
        "any",
        "weir capture any on a machine with two hundred more links: how long it takes to start, what memory it has \
         beside a capture of one link, whether the frames of each link were captured to the last, and how soon a link \
         is captured that joins.",
    ),
    (
        "churn",
        "Feeds that are added and removed, and consumers that are attached and detached, while frames come as fast as \
         they can: how long each call takes, whether every ledger closes, and what is left over.",
    ),
    (
        "idle",
        "A capture of a silent link: its CPU time, memory beyond the rings, and how soon a single frame is \
              printed.",
    ),
];

/// The name of a column, and its description.
const COLUMNS: [(&str, &str); 9] = [
    (
        "value",
        "the median over the rounds; the black line in the plot reaches from the least to the most.",
    ),
    ("Gbit/s", "the same with each frame's FCS, without preamble and gap."),
    (
        "x",
        "this row's value over that of the row named, as the median of the ratios within each round.",
    ),
    (
        "CPU s/M",
        "CPU seconds of the tool's own process for a million frames kept. What the kernel did for it in \
                 softirqs is on the sender's account.",
    ),
    (
        "offered",
        "frames that the link took from the generator in all rounds, by the link's own count.",
    ),
    ("kept", "frames that reached the tool's consumer, by its own report."),
    (
        "lost",
        "every counter that is not zero, by name, over all rounds. UNACCOUNTED is what the tool does not \
              account for: offered less kept less its drops.",
    ),
    (
        "p50 ... max",
        "microseconds: half of the frames took p50 or less, and so on; medians over the rounds, and \
                     the longest of all.",
    ),
    ("n/a", "the tool is not installed or failed, and how."),
];

/// Returns the text below the heading of a section.
pub(in crate::bench) fn of_section(name: &str) -> &'static str {
    let found = SECTIONS.iter().find(|(section, _)| name.starts_with(section));
    found.map_or("", |(_, text)| text)
}

/// Returns the list of columns.
pub(super) fn columns() -> String {
    let mut html = "<h2 id=columns>How to read the tables</h2>\n<dl>\n".to_owned();
    for (name, text) in COLUMNS {
        html += &format!("<dt>{name}<dd>{text}\n");
    }
    html + "</dl>\n"
}
