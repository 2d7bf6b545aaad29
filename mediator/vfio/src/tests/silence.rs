//! A device that stops to answer, and answers again.

use std::sync::atomic::{AtomicBool, Ordering};

use turnstile_accounting::{EngineState, SwitchEvent};
use turnstile_gpu::{Contexts, EngineReading};

use super::*;

static OFF_THE_BUS: AtomicBool = AtomicBool::new(false);

fn all_ones(_: Region, _: u64, data: &mut [u8]) {
    if OFF_THE_BUS.load(Ordering::Relaxed) {
        data.fill(0xff);
    }
}

#[test]
fn device_off_the_bus_is_silent_until_it_was_reset_and_its_clock_goes_on() {
    let bus = Arc::new(FakeBus::new(PciGpu::new(config()).unwrap()));
    let altered = Arc::new(Altered::new(bus, all_ones));
    let gpu = VfioGpu::new(altered).unwrap();
    assert_eq!(gpu.answers(), Ok(()));
    let _before = channel(&gpu, A);
    OFF_THE_BUS.store(true, Ordering::Relaxed);
    let reason = gpu.answers().unwrap_err();
    assert!(reason.contains("off the bus"), "{reason}");
    assert!(gpu.take_back().is_err());
    assert!(gpu.answers().is_err());
    let at = gpu.now();
    OFF_THE_BUS.store(false, Ordering::Relaxed);
    assert!(gpu.answers().is_err(), "its contexts are not known");
    assert_eq!(gpu.take_back(), Ok(Contexts::Gone));
    assert_eq!(gpu.answers(), Ok(()));
    assert!(gpu.now() >= at);
    // The context of before is gone; the same tenant can enter.
    gpu.destroy_context(A);
    let vm = vm(&gpu, A);
    let mut channel = vm.open_channel(&gpu, A, 64, 3).unwrap();
    channel.push(&kernel(&vm, Nanos::from_us(100)));
    channel.ring();
    let mut reading = EngineReading::default();
    wait("switch", || {
        gpu.read(&mut reading);
        let runs = |event: &SwitchEvent| event.state == EngineState::Running(A);
        reading.switches.iter().any(runs)
    });
    let events = reading.switches;
    assert!(events.iter().all(|event| event.at >= at), "{events:?}");
}

#[test]
fn device_that_was_off_the_bus_conforms() {
    static GONE: AtomicBool = AtomicBool::new(false);
    let alter = |_, _, data: &mut [u8]| {
        if GONE.load(Ordering::Relaxed) {
            data.fill(0xff);
        }
    };
    let bus = Arc::new(FakeBus::new(PciGpu::new(config()).unwrap()));
    let gpu = VfioGpu::new(Arc::new(Altered::new(bus, alter))).unwrap();
    conforms_silenced(&gpu, Some(&|gone| GONE.store(gone, Ordering::Relaxed)));
}

#[test]
fn server_that_ends_is_found_at_once() {
    let device = PciGpu::new(config()).unwrap();
    let (server, client) = UnixStream::pair().unwrap();
    let end = server.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| serve_client(&device, server));
        let bus = UserBus::over(Client::over(client).unwrap(), "/nonexistent".into()).unwrap();
        let gpu = VfioGpu::new(Arc::new(bus)).unwrap();
        assert_eq!(gpu.answers(), Ok(()));
        end.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(gpu.answers().is_err());
        assert!(gpu.take_back().unwrap_err().contains("No device is served"));
    });
}
