//! Bytes from a VMM over vfio-user, as a stream: served to its end without a panic.
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use turnstile_vmm::vfio_user::{
    Backend, Command, DmaMap, DmaUnmap, Errno, Header, Irq, IrqData, Layout, Region, SetIrqs, irq,
    serve,
};

/// Accepts everything, and checks that each access is within the device.
struct Anything;

impl Backend for Anything {
    fn read(&mut self, _: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        assert!(offset + data.len() as u64 <= 0x1000);
        Ok(())
    }
    fn write(&mut self, _: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        assert!(offset + data.len() as u64 <= 0x1000);
        Ok(())
    }
    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        assert!(map.bytes.is_multiple_of(4096) && map.address.checked_add(map.bytes).is_some());
        Ok(())
    }
    fn dma_unmap(&mut self, _: DmaUnmap) -> Result<(), Errno> {
        Ok(())
    }
    fn set_irqs(&mut self, set: SetIrqs) -> Result<(), Errno> {
        assert!(set.start + set.count <= 4);
        if let IrqData::Bool(which) = set.data {
            assert_eq!(which.len(), set.count as usize);
        }
        Ok(())
    }
    fn reset(&mut self) -> Result<(), Errno> {
        Ok(())
    }
}

/// The first byte selects whether a version precedes; the others are the stream.
///
/// # Panics
/// If an access beyond the device is passed on.
pub fn vfio_user(bytes: &[u8]) {
    let (client, server) = UnixStream::pair().expect("a socket pair");
    let mut layout = Layout::default();
    layout.regions[0] = Region::trapped(0x1000);
    layout.irqs[irq::MSIX as usize] = Irq { count: 4 };
    thread::scope(|scope| {
        let mut reader = client.try_clone().expect("a descriptor");
        scope.spawn(move || {
            let _ = std::io::copy(&mut Read::by_ref(&mut reader), &mut std::io::sink());
        });
        scope.spawn(|| {
            let _ = serve(server, &layout, &mut Anything);
        });
        if bytes.first().is_some_and(|byte| byte & 1 == 0) {
            let header = Header::command(0, Command::Version, 4);
            let _ = (&client).write_all(&header.encode());
            let _ = (&client).write_all(&[0, 0, 1, 0]);
        }
        let _ = (&client).write_all(bytes.get(1..).unwrap_or(&[]));
        let _ = client.shutdown(std::net::Shutdown::Write);
    });
}
