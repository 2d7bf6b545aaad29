//! A device that stops to answer, and answers again.

use std::sync::atomic::{AtomicBool, Ordering};

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
    assert_eq!(gpu.silence(), None);
    let _before = channel(&gpu, A);
    OFF_THE_BUS.store(true, Ordering::Relaxed);
    let reason = gpu.silence().unwrap();
    assert!(reason.contains("off the bus"), "{reason}");
    assert!(gpu.retake().is_err());
    assert!(gpu.silence().is_some());
    let at = gpu.now();
    OFF_THE_BUS.store(false, Ordering::Relaxed);
    assert!(gpu.silence().is_some(), "its contexts are not known");
    gpu.retake().unwrap();
    assert_eq!(gpu.silence(), None);
    assert!(gpu.now() >= at);
    // The context of before is gone; the same tenant can enter.
    gpu.destroy_context(A);
    let vm = vm(&gpu, A);
    let mut channel = vm.open_channel(&gpu, A, 64, 3).unwrap();
    channel.push(&kernel(&vm, Nanos::from_us(100)));
    channel.ring();
    let mut events = Vec::new();
    wait("switch", || {
        gpu.read_events(&mut events);
        events
            .iter()
            .any(|event| event.state == EngineState::Running(A))
    });
    // The first records are as old as the device, which was not made anew.
    let running = events
        .iter()
        .filter(|event| event.state == EngineState::Running(A));
    assert!(running.clone().all(|event| event.at >= at), "{events:?}");
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
        assert_eq!(gpu.silence(), None);
        end.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(gpu.silence().is_some());
        assert!(gpu.retake().unwrap_err().contains("No device is served"));
    });
}
