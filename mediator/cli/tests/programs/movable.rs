//! Memory of a program under `turnstile run --movable`, on all of the way from its calls to the
//! daemon. Its driver has no GPU (`mediator/preload/tests`).

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{MemfdFlags, memfd_create};
use turnstile_accounting::TenantId;
use turnstile_nvidia::programs::ProgramPlace;

use super::gpu::FakeGpu;
use super::library::library;
use super::{Bench, until};

fn compile(arguments: &[&str]) {
    let built = Command::new("cc").arg("-O1").args(arguments).status();
    assert!(built.unwrap().success(), "{arguments:?}");
}

/// Builds driver and program; returns the program.
pub(crate) fn build(bench: &Bench) -> String {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/tests");
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    let (driver, program) = (text(bench.path("libcuda.so.1")), text(bench.path("tenant")));
    let source = text(tests.join("libcuda.c"));
    let soname = "-Wl,-Bsymbolic,-soname,libcuda.so.1";
    compile(&["-shared", "-fPIC", soname, "-o", &driver, &source]);
    let source = text(tests.join("tenant.c"));
    compile(&[
        "-DLINKED",
        "-w",
        "-std=gnu11",
        "-o",
        &program,
        &source,
        &driver,
    ]);
    program
}

/// Other memory with the same bytes.
fn copied(handle: OwnedFd, bytes: u64) -> OwnedFd {
    let mut held = vec![0; usize::try_from(bytes).unwrap()];
    let mut from = File::from(handle);
    from.rewind().unwrap();
    from.read_exact(&mut held).unwrap();
    let mut to = File::from(memfd_create("other", MemfdFlags::CLOEXEC).unwrap());
    to.write_all(&held).unwrap();
    to.into()
}

#[test]
fn memory_of_a_program_moves_out_and_back_and_is_limited() {
    let mut bench = Bench::new();
    bench.restart_over(FakeGpu::with_pool(1 << 30));
    let program = build(&bench);
    let (folder, library) = (bench.folder.path(), library());
    let options = ["--movable", "--memory-max", "1073741824", "--preload"];
    let options = [&options[..], &[library.to_str().unwrap()]].concat();
    let mut run = bench.run(&options, &[&program, "linked", folder.to_str().unwrap()]);
    let child = run.env("LD_LIBRARY_PATH", folder).spawn().unwrap();
    for round in 0..3 {
        let turn = folder.join(format!("round-{round}"));
        until("its turn", || turn.exists());
        // The program reports its memory and continues without an answer: the last report may be on
        // its way.
        until("all of its memory is known", || {
            bench.gpu.backing.0.lock().unwrap().len() >= 6
        });
        let mut handles = std::mem::take(&mut *bench.gpu.backing.0.lock().unwrap());
        let tenant: TenantId = handles.first_key_value().unwrap().1.0;
        let places: Vec<ProgramPlace> = handles.keys().copied().collect();
        let (held, pinned) = bench.gpu.memory.held_bytes(tenant).unwrap();
        assert_eq!(held, places.iter().map(|place| place.bytes).sum::<u64>());
        assert_eq!(pinned, 16 << 20, "an array");
        bench.gpu.memory.unmap(tenant, &places).unwrap();
        let mut back = Vec::new();
        for (place, (_, handle)) in &mut handles {
            *handle = copied(handle.try_clone().unwrap(), place.bytes);
            back.push((*place, handle.try_clone().unwrap()));
        }
        *bench.gpu.backing.0.lock().unwrap() = handles;
        bench.gpu.memory.map(tenant, back).unwrap();
        if round == 2 {
            fs::write(folder.join("stop"), "").unwrap();
        }
        fs::write(folder.join(format!("go-{round}")), "").unwrap();
    }
    let ended = child.wait_with_output().unwrap();
    let messages = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(5), "{messages}");
    until("all of it is freed", || {
        bench.gpu.backing.0.lock().unwrap().is_empty()
    });

    let options = ["--movable", "--memory-max", "16777216", "--preload"];
    let options = [&options[..], &[library.to_str().unwrap()]].concat();
    let mut run = bench.run(&options, &[&program, "linked", "limits"]);
    let ended = run.env("LD_LIBRARY_PATH", folder).output().unwrap();
    let messages = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(5), "{messages}");
    assert_eq!(bench.gpu.memory.figures()["program_memory_denied_limit"], 4);
}
