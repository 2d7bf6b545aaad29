//! `turnstile-guest`: the GPU of this VM, from its shell.

mod args;
mod workload;

use std::fs;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use args::{Args, Param, UsageError};
use turnstile_abi::{Dim3, QueryItem};
use turnstile_guest::Params;
use turnstile_guest_linux::{Bus, Gpu, GuestError};

const HELP: &str = "\
turnstile-guest: the Turnstile GPU of this virtual machine (as root, or with vfio-pci as who may use its group)

  turnstile-guest info                      the device, and what this VM may use
  turnstile-guest run --ptx FILE --kernel NAME [--input FILE] [--output FILE] [--output-bytes N]
                      [--grid N] [--block N] [--shared BYTES] [PARAM...]
                                            runs a kernel on a file; a PARAM is one of
                                            in, out   address of the input, of the output
                                            u32:N  u64:N  f32:X
                                            words     32-bit words of the input, as u32
  turnstile-guest bench [--seconds N]       launches and copies a second, and what they took
  turnstile-guest watch [--seconds N]       GPU seconds, weight and share of this VM, once a second
  turnstile-guest workload verify|load [--seconds N] [--kernel-us N]
                                            every kernel of the test suite, or a load whose results are checked
  turnstile-guest --version                 its version
";

#[derive(Debug)]
enum Failure {
    Usage(UsageError),
    Guest(GuestError),
    File(String, std::io::Error),
    Workload(String),
}

impl From<GuestError> for Failure {
    fn from(error: GuestError) -> Self {
        Self::Guest(error)
    }
}

impl From<turnstile_guest::DriverError> for Failure {
    fn from(error: turnstile_guest::DriverError) -> Self {
        Self::Guest(error.into())
    }
}

impl From<UsageError> for Failure {
    fn from(error: UsageError) -> Self {
        Self::Usage(error)
    }
}

fn main() -> ExitCode {
    let failed = match perform() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(failure) => failure,
    };
    match failed {
        Failure::Usage(error) => eprint!("turnstile-guest: {error}\n\n{HELP}"),
        Failure::Guest(error) => {
            eprintln!("turnstile-guest: {error}");
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                eprintln!("  because: {cause}");
                source = cause.source();
            }
        }
        Failure::File(path, error) => eprintln!("turnstile-guest: {path}: {error}"),
        Failure::Workload(text) => eprintln!("turnstile-guest: {text}"),
    }
    ExitCode::FAILURE
}

fn perform() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let args = Args::parse(arguments)?;
    match command.as_str() {
        "info" => info(),
        "run" => run(&args),
        "bench" => bench(&args),
        "watch" => watch(&args),
        "workload" => workload::run(&args),
        "--version" | "-V" => {
            println!("turnstile-guest {}", env!("TURNSTILE_VERSION"));
            Ok(())
        }
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        _ => Err(UsageError::Command(command).into()),
    }
}

fn info() -> Result<(), Failure> {
    let bus = Bus::open(Gpu::DMA_BYTES)?;
    let gpu = Gpu::new(&bus)?;
    let device = gpu.device();
    let usage = gpu.usage();
    println!("device            {}", bus.address());
    println!("features          {:#x}", device.features());
    println!(
        "multiprocessors   {}",
        device.query(QueryItem::Multiprocessors)?
    );
    println!(
        "shared memory     {} bytes a block",
        device.query(QueryItem::SharedBytesMax)?
    );
    println!(
        "GPU memory        {} MiB, {} MiB free",
        device.memory_bytes() >> 20,
        gpu.free_bytes()? >> 20
    );
    println!("channels          {}", device.channels());
    println!("weight            {}", device.query(QueryItem::Weight)?);
    println!("compute used      {:.6} s", usage.compute_ns as f64 / 1e9);
    println!("copies used       {:.6} s", usage.copy_ns as f64 / 1e9);
    println!("held back         {:.6} s", usage.held_ns as f64 / 1e9);
    println!(
        "memory for it     {} KiB at {:#x}",
        bus.dma().bytes() >> 10,
        bus.dma().address()
    );
    match bus.interrupts() {
        Some(seen) => println!("notification      interrupts (vfio-pci), {seen} so far"),
        None => println!("notification      looking (no interrupts without vfio-pci)"),
    }
    Ok(())
}

fn read(path: &str) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| Failure::File(path.to_owned(), error))
}

fn run(args: &Args) -> Result<(), Failure> {
    let ptx = read(args.required("ptx")?)?;
    let name = args.required("kernel")?;
    let input = args.text("input").map(read).transpose()?;
    let input_bytes = input.as_ref().map_or(0, |bytes| bytes.len() as u64);
    let output_bytes = args.number("output-bytes")?.unwrap_or(input_bytes);
    let bus = Bus::open(Gpu::DMA_BYTES)?;
    let mut gpu = Gpu::new(&bus)?;
    let module = gpu.load(&ptx)?;
    let kernel = gpu.find(module, name)?;
    let from = gpu.allocate(input_bytes.max(1))?;
    let to = gpu.allocate(output_bytes.max(1))?;
    if let Some(input) = &input {
        gpu.copy_in(from.va, input)?;
    }
    let params = args
        .params()?
        .iter()
        .fold(Params::new(), |params, param| match param {
            Param::In => params.u64(from.va),
            Param::Out => params.u64(to.va),
            // CAST: the kernel's own limit; files of the tool are shorter.
            Param::Words => params.u32((input_bytes / 4) as u32),
            Param::U32(value) => params.u32(*value),
            Param::U64(value) => params.u64(*value),
            Param::F32(value) => params.f32(*value),
        });
    let block = args.number("block")?.unwrap_or(128);
    let grid = args.number("grid")?;
    let grid = grid.unwrap_or((output_bytes / 4).div_ceil(block.max(1)).max(1));
    let shared = args.number("shared")?.unwrap_or(0);
    let narrow = |value: u64, name: &str| {
        u32::try_from(value).map_err(|_| UsageError::Number(name.to_owned()))
    };
    let (grid, block) = (narrow(grid, "grid")?, narrow(block, "block")?);
    let before = gpu.usage().compute_ns;
    let since = Instant::now();
    gpu.launch(
        kernel,
        Dim3::line(grid),
        Dim3::line(block),
        narrow(shared, "shared")?,
        &params,
    )?;
    gpu.finish()?;
    let took = since.elapsed();
    let mut output = vec![0; output_bytes as usize];
    gpu.copy_out(to.va, &mut output)?;
    eprintln!(
        "{name}: {:.3} ms until seen; {:.3} ms of GPU charged so far",
        took.as_secs_f64() * 1e3,
        (gpu.usage().compute_ns - before) as f64 / 1e6
    );
    gpu.free(from)?;
    gpu.free(to)?;
    if let Some(path) = args.text("output") {
        fs::write(path, output).map_err(|error| Failure::File(path.to_owned(), error))?;
    }
    Ok(())
}

fn bench(args: &Args) -> Result<(), Failure> {
    let bus = Bus::open(Gpu::DMA_BYTES)?;
    let mut gpu = Gpu::new(&bus)?;
    let span = Duration::from_secs(args.number("seconds")?.unwrap_or(3));
    let module = gpu.load(workload::SPIN_PTX.as_bytes())?;
    let kernel = gpu.find(module, "spin")?;
    let memory = gpu.allocate(4 << 20)?;
    let mut measure =
        |what: &str, bytes: u64, act: &mut dyn FnMut(&mut Gpu<'_>) -> Result<(), GuestError>| {
            let (since, mut count) = (Instant::now(), 0_u32);
            while since.elapsed() < span {
                act(&mut gpu)?;
                count += 1;
            }
            // What a VMM passes on by and by has arrived when a read is answered.
            gpu.device().is_lost();
            let each = since.elapsed().as_secs_f64() / f64::from(count);
            let rate = bytes as f64 / each / 1e6;
            println!(
                "{what:<28} {:>10.1} us each{}",
                each * 1e6,
                if bytes == 0 {
                    String::new()
                } else {
                    format!(", {rate:.1} MB/s")
                }
            );
            Ok::<(), GuestError>(())
        };
    let params = Params::new().u64(1_000).u64(memory.va).u32(0).u32(1);
    let mut data = vec![7; 1 << 20];
    measure("register read", 0, &mut |gpu| {
        gpu.device().is_lost();
        Ok(())
    })?;
    measure("doorbell write", 0, &mut |gpu| {
        gpu.ring();
        Ok(())
    })?;
    measure("launch of 1 us, and back", 0, &mut |gpu| {
        gpu.launch(kernel, Dim3::line(1), Dim3::line(32), 0, &params)?;
        gpu.finish()
    })?;
    measure("copy of 1 MiB to the GPU", 1 << 20, &mut |gpu| {
        gpu.copy_in(memory.va, &data)
    })?;
    measure("copy of 1 MiB from the GPU", 1 << 20, &mut |gpu| {
        gpu.copy_out(memory.va, &mut data)
    })?;
    gpu.free(memory)?;
    if let Some(seen) = bus.interrupts() {
        println!("interrupts {seen}");
    }
    Ok(())
}

fn watch(args: &Args) -> Result<(), Failure> {
    let bus = Bus::open(Gpu::DMA_BYTES)?;
    let gpu = Gpu::new(&bus)?;
    let mut left = args.number("seconds")?.unwrap_or(u64::MAX);
    println!(
        "{:>8} {:>12} {:>12} {:>12} {:>8}",
        "weight", "compute s", "copies s", "held s", "share %"
    );
    let (mut before, mut at) = (gpu.usage(), Instant::now());
    while left > 0 {
        thread::sleep(Duration::from_secs(1));
        let (now, moment) = (gpu.usage(), Instant::now());
        let used = (now.compute_ns - before.compute_ns) as f64;
        let share = used / (moment - at).as_nanos() as f64 * 100.0;
        println!(
            "{:>8} {:>12.3} {:>12.3} {:>12.3} {share:>8.1}",
            now.weight,
            now.compute_ns as f64 / 1e9,
            now.copy_ns as f64 / 1e9,
            now.held_ns as f64 / 1e9
        );
        (before, at) = (now, moment);
        left -= 1;
    }
    Ok(())
}
