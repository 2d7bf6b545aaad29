//! Stock Cloud Hypervisor for the tests. No distribution packages it: its path is in
//! `TURNSTILE_CLOUD_HYPERVISOR`, or it is on `PATH`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use turnstile_abi::boot::module::head as module_head;
use turnstile_abi::boot::{FILE_BYTES, File as BootFile, file_entry};
use turnstile_host::memory_file::{inherited, memory_file};
use turnstile_images::Workload;

use crate::machine::{Ended, Lab};

/// TIMEOUT: a stock kernel boots in a second under hardware KVM, in 20 s if eight machines share a
/// core. Under a KVM that emulates the kernel's privilege level it never boots.
const PROBE: Duration = Duration::from_secs(20);
/// TIMEOUT: the console's socket exists before the machine boots.
const CONSOLE: Duration = Duration::from_secs(10);
/// TIMEOUT: milliseconds; longer on a busy host.
const ANSWER: Duration = Duration::from_secs(10);

/// The program.
#[derive(Debug)]
pub struct Cloud {
    program: PathBuf,
}

/// What it boots.
#[derive(Clone, Debug)]
pub enum Payload<'a> {
    /// The lab's kernel, its initramfs, and what `images/lab/init` runs.
    Linux(&'a Lab, &'a str),
    /// A PVH kernel and its first module.
    Pvh(&'a Path, &'a Path),
}

/// A running machine.
#[derive(Debug)]
pub struct Running {
    /// Its process.
    pub process: Ended,
    /// Input of its serial console; none if it has no such console.
    pub input: Option<UnixStream>,
    /// Its memory.
    pub memory: File,
    api: PathBuf,
}

impl Running {
    /// Sends a request to Cloud Hypervisor's API; returns the answer.
    ///
    /// # Errors
    /// As connect(2); `Other` with the answer if it is a refusal.
    pub fn request(&self, method: &str, what: &str, body: &str) -> io::Result<String> {
        let mut stream = UnixStream::connect(&self.api)?;
        stream.set_read_timeout(Some(ANSWER))?;
        write!(
            stream,
            "{method} /api/v1/{what} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = Vec::new();
        let mut bytes = [0; 4096];
        loop {
            let text = String::from_utf8_lossy(&answer);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    let named = name.eq_ignore_ascii_case("content-length");
                    named.then(|| value.trim().parse::<usize>().ok())?
                });
                if body.len() >= length.unwrap_or(0) {
                    let done = head.starts_with("HTTP/1.1 2");
                    let body = body.to_owned();
                    return if done {
                        Ok(body)
                    } else {
                        Err(io::Error::other(text.into_owned()))
                    };
                }
            }
            match stream.read(&mut bytes)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => answer.extend_from_slice(&bytes[..count]),
            }
        }
    }

    /// Plugs a device in, with the id `gpu`.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn plug(&self, socket: &Path) -> io::Result<()> {
        let device = serde_json::json!({ "id": "gpu", "socket": socket });
        self.request("PUT", "vm.add-user-device", &device.to_string())
            .map(drop)
    }

    /// Sends the guest a request to release the device.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn unplug(&self) -> io::Result<()> {
        self.request("PUT", "vm.remove-device", r#"{"id":"gpu"}"#)
            .map(drop)
    }

    /// Whether the device is plugged in.
    pub(crate) fn has_device(&self) -> bool {
        let info = self.request("GET", "vm.info", "");
        info.is_ok_and(|info| info.contains(r#""id":"gpu""#))
    }

    /// Whether the machine has begun to run.
    pub fn runs(&self) -> bool {
        let info = self.request("GET", "vm.info", "");
        info.is_ok_and(|info| info.contains(r#""state":"Running""#))
    }
}

impl Cloud {
    /// Path of the program.
    pub fn program() -> Option<PathBuf> {
        let named = std::env::var_os("TURNSTILE_CLOUD_HYPERVISOR");
        named.map(PathBuf::from).or_else(|| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path)
                .map(|folder| folder.join("cloud-hypervisor"))
                .find(|program| program.is_file())
        })
    }

    /// Finds the program, and prints its version.
    ///
    /// # Errors
    /// Why none can be used.
    pub fn find() -> Result<Self, String> {
        let program = Self::program()
            .ok_or("no cloud-hypervisor on the path; TURNSTILE_CLOUD_HYPERVISOR names one")?;
        let version = Command::new(&program).arg("--version").output();
        let version =
            version.map_err(|error| format!("{} does not run: {error}", program.display()))?;
        let version = String::from_utf8_lossy(&version.stdout);
        println!("{}", version.lines().next().unwrap_or_default());
        turnstile_vmm::vmm::kvm_available()
            .map_err(|error| format!("Cloud Hypervisor runs under KVM alone: {error}"))?;
        Ok(Self { program })
    }

    /// Whether the lab's kernel reaches its first program under this machine's KVM.
    ///
    /// # Errors
    /// Why not.
    pub fn boots(&self, lab: &Lab, folder: &Path) -> Result<(), String> {
        let console = folder.join("probe.log");
        let started = self.start("probe", &Payload::Linux(lab, "true"), 256, None, &console);
        let mut machine = started.map_err(|error| format!("it does not start: {error}"))?;
        let ended = machine.process.ends(PROBE);
        let output = fs::read_to_string(&console).unwrap_or_default();
        match ended {
            Some(0) if output.contains("LAB status 0 of true") => Ok(()),
            ended => {
                let log = fs::read_to_string(console.with_extension("vmm.log"));
                let log = log.unwrap_or_default();
                let why = log.lines().rfind(|line| line.contains("Unexpected exit"));
                let last = output.lines().last().unwrap_or("it said nothing");
                Err(format!(
                    "a stock kernel does not start in Cloud Hypervisor under this machine's KVM (status {ended:?}): {}",
                    why.unwrap_or(last).trim().trim_end_matches(')')
                ))
            }
        }
    }

    /// Starts a machine with one processor and sealed memory, as `turnstile sealed-memory` makes
    /// it. Its console output goes to the file `console`; beside that are its socket and its own
    /// log.
    ///
    /// # Errors
    /// As fork(2) and exec; if there is no memory, or no console.
    pub fn start(
        &self,
        name: &str,
        payload: &Payload<'_>,
        memory_mib: u64,
        device: Option<&Path>,
        console: &Path,
    ) -> io::Result<Running> {
        let memory = memory_file(name, memory_mib << 20)?;
        // A number above those of this process.
        let least = 300;
        let open = (least..least + 100)
            .find_map(|number| inherited(&memory, number).ok())
            .ok_or(io::ErrorKind::AddrInUse)?;
        let zone = format!(
            "id=ram,size={memory_mib}M,shared=on,file=/proc/self/fd/{}",
            open.as_raw_fd()
        );
        let beside = |end: &str| console.with_extension(end);
        let mut machine = Command::new(&self.program);
        machine
            .args(["--cpus", "boot=1", "--console", "off"])
            .args(["--memory", "size=0", "--memory-zone", &zone, "-v"])
            .arg("--log-file")
            .arg(beside("vmm.log"))
            .arg("--api-socket")
            .arg(beside("api"));
        if let Some(device) = device {
            machine
                .arg("--user-device")
                .arg(option("socket=", device.as_os_str()));
        }
        let output = File::create(console)?;
        let serial = beside("serial");
        match payload {
            Payload::Linux(lab, commands) => {
                let line = format!("console=ttyS0 quiet panic=-1 hugepages=16 lab={commands}");
                machine
                    .args(["--cmdline", &line, "--serial"])
                    .arg(option("socket=", serial.as_os_str()))
                    .arg("--kernel")
                    .arg(lab.kernel())
                    .arg("--initramfs")
                    .arg(lab.initramfs());
            }
            Payload::Pvh(kernel, module) => {
                machine
                    .args(["--serial", "off", "--debug-console"])
                    .arg(option("file=", console.as_os_str()))
                    .arg("--kernel")
                    .arg(kernel)
                    .arg("--initramfs")
                    .arg(module);
            }
        }
        let errors = File::create(beside("errors"))?;
        let machine = machine
            .stdin(Stdio::null())
            .stdout(errors.try_clone()?)
            .stderr(errors)
            .spawn()?;
        // The machine holds its own copy.
        drop(open);
        let mut process = Ended::from(machine);
        let input = match payload {
            Payload::Linux(..) => Some(listen(&serial, output, &mut process)?),
            Payload::Pvh(..) => None,
        };
        Ok(Running {
            process,
            input,
            memory,
            api: beside("api"),
        })
    }
}

fn option(name: &str, value: &OsStr) -> std::ffi::OsString {
    let mut option = std::ffi::OsString::from(name);
    option.push(value);
    option
}

/// Copies the output of a machine's serial console to a file; bytes written to the returned stream
/// are the machine's input.
fn listen(socket: &Path, mut output: File, process: &mut Ended) -> io::Result<UnixStream> {
    let until = Instant::now() + CONSOLE;
    let stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() > until => return Err(error),
            Err(error) => {
                if process.ends(Duration::ZERO).is_some() {
                    return Err(error);
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
    };
    let mut from = stream.try_clone()?;
    thread::Builder::new()
        .name("serial".into())
        .spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                if output.write_all(&bytes[..count]).is_err() {
                    return;
                }
            }
        })?;
    Ok(stream)
}

/// The first module of the freestanding guest: its workload and its files.
///
/// # Panics
/// Never: the files' names are short.
pub fn module(workload: &Workload) -> Vec<u8> {
    let (args, files) = (workload.encode(), turnstile_images::files());
    let mut bytes = module_head(args.len() as u64, files.len() as u64).to_vec();
    bytes.extend_from_slice(&args);
    let mut next = bytes.len() + files.len() * FILE_BYTES;
    for (name, contents) in &files {
        let file = BootFile {
            gpa: next as u64,
            bytes: contents.len() as u64,
        };
        let entry = file_entry(name, file).expect("names are short");
        bytes.extend_from_slice(&entry);
        next += contents.len();
    }
    for (_, contents) in &files {
        bytes.extend_from_slice(contents);
    }
    bytes
}
