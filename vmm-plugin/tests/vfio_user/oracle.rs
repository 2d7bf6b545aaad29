//! Against the crate `vfio_user`, which others' VMMs use.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::thread;

use turnstile_vmm::vfio_user::{Area, Client, irq, region, serve};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_REGION_INFO_FLAG_MMAP,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
    vfio_region_sparse_mmap_area,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

use crate::fake::{Fake, SHARED_BYTES, SUM_AT, VECTORS, layout, memory};
use crate::{count, eventfd};

#[test]
fn its_client_drives_our_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vm.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let (layout, shared) = layout();
    let server = thread::spawn(move || {
        let mut fake = Fake::new();
        let (stream, _) = listener.accept().unwrap();
        serve(stream, &layout, &mut fake)
    });
    let mut client = vfio_user::Client::new(&path).unwrap();
    let region = client.region(2).unwrap();
    let areas: Vec<_> = region
        .sparse_areas
        .iter()
        .map(|area| (area.offset, area.size))
        .collect();
    assert_eq!(region.size, SHARED_BYTES);
    assert_eq!(areas, [(0, 0x1000), (0x2000, 0x1000)]);
    let file = region.file_offset.as_ref().unwrap().file();
    shared.write_all_at(b"here", 0x2000).unwrap();
    let mut seen = [0; 4];
    file.read_exact_at(&mut seen, 0x2000).unwrap();
    assert_eq!(&seen, b"here");
    assert_eq!(client.region(0).unwrap().size, 0x1000);
    assert_eq!(client.get_irq_info(irq::MSIX).unwrap().count, VECTORS);

    client.region_write(0, 8, &[5, 6, 7, 8]).unwrap();
    let mut data = [0; 4];
    client.region_read(0, 8, &mut data).unwrap();
    assert_eq!(data, [5, 6, 7, 8]);
    // As a guest does by ECAM. This client waits endlessly for a refused read.
    client
        .region_read(region::CONFIG, 0x100, &mut data)
        .unwrap();
    assert_eq!(data, [0xff; 4]);
    client.region_write(region::CONFIG, 0xffc, &data).unwrap();

    let ram = memory(0x4000);
    ram.write_all_at(&[2; 64], 0).unwrap();
    client
        .dma_map(0, 0x10_0000, 0x4000, ram.as_raw_fd())
        .unwrap();
    let eventfd = eventfd();
    let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    client
        .set_irqs(irq::MSIX, flags, 0, 1, &[eventfd.as_raw_fd()])
        .unwrap();
    client
        .region_write(0, SUM_AT, &0x10_0000_u64.to_le_bytes())
        .unwrap();
    let mut sum = [0; 8];
    ram.read_exact_at(&mut sum, 64).unwrap();
    assert_eq!((u64::from_le_bytes(sum), count(&eventfd)), (128, 1));
    client.dma_unmap(0x10_0000, 0x4000).unwrap();
    client.reset().unwrap();
    drop(client);
    server.join().unwrap().unwrap();
}

#[derive(Default)]
struct Theirs {
    last: Vec<u8>,
    mapped: u64,
    fds: usize,
}

impl ServerBackend for Theirs {
    fn region_read(&mut self, _: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        data.fill(offset as u8);
        Ok(())
    }
    fn region_write(&mut self, _: u32, _: u64, data: &[u8]) -> io::Result<()> {
        self.last = data.to_vec();
        Ok(())
    }
    fn dma_map(
        &mut self,
        _: DmaMapFlags,
        _: u64,
        _: u64,
        size: u64,
        fd: Option<File>,
    ) -> io::Result<()> {
        assert!(fd.is_some());
        self.mapped += size;
        Ok(())
    }
    fn dma_unmap(&mut self, _: DmaUnmapFlags, _: u64, size: u64) -> io::Result<()> {
        self.mapped -= size;
        Ok(())
    }
    fn reset(&mut self) -> io::Result<()> {
        self.last.clear();
        Ok(())
    }
    fn set_irqs(&mut self, _: u32, _: u32, _: u32, _: u32, fds: Vec<File>) -> io::Result<()> {
        self.fds += fds.len();
        Ok(())
    }
}

#[test]
fn our_client_drives_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vm.sock");
    let file = memory(0x4000);
    let sparse = |offset| vfio_user::SparseArea {
        area: vfio_region_sparse_mmap_area {
            offset,
            size: 0x1000,
        },
    };
    let regions = (0..region::COUNT)
        .map(|index| {
            let mapped = index == 2;
            let mut flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
            if mapped {
                flags |= VFIO_REGION_INFO_FLAG_MMAP;
            }
            ServerRegion {
                region_info: vfio_region_info {
                    argsz: size_of::<vfio_region_info>() as u32,
                    index,
                    size: 0x4000,
                    flags,
                    ..Default::default()
                },
                sparse_areas: if mapped { vec![sparse(0x1000)] } else { vec![] },
                mmap_fd: mapped.then(|| file.as_raw_fd()),
            }
        })
        .collect();
    let irqs = (0..irq::COUNT)
        .map(|index| IrqInfo {
            index,
            flags: 1,
            count: 4,
        })
        .collect();
    let server = Server::new(&path, true, irqs, regions).unwrap();
    let server = thread::spawn(move || {
        let mut theirs = Theirs::default();
        // It calls the end of the connection an error.
        let _ = server.run(&mut theirs);
        theirs
    });
    let mut client = Client::connect(&path).unwrap();
    let shown = client.region(2).unwrap();
    let area = Area {
        offset: 0x1000,
        bytes: 0x1000,
    };
    assert_eq!((shown.bytes, shown.areas), (0x4000, vec![area]));
    assert_eq!(shown.file.unwrap().metadata().unwrap().len(), 0x4000);
    let mut data = [0; 8];
    client.read(0, 7, &mut data).unwrap();
    assert_eq!(data, [7; 8]);
    client.reset().unwrap();
    client.write(0, 0, b"last").unwrap();
    use std::os::fd::AsFd;
    let eventfds = [eventfd(), eventfd(), eventfd()];
    let fds: Vec<_> = eventfds.iter().map(AsFd::as_fd).collect();
    client.set_eventfds(irq::MSIX, 0, &fds).unwrap();
    let ram = Some((file.as_fd(), 0));
    client.dma_map(0x1000, 0x3000, ram).unwrap();
    client.dma_map(0x10_0000, 0x1000, ram).unwrap();
    client.dma_unmap(0x1000, 0x3000).unwrap();
    assert_eq!(client.irq(irq::MSIX).unwrap().count, 4);
    drop(client);
    let theirs = server.join().unwrap();
    assert_eq!(
        (theirs.last, theirs.mapped, theirs.fds),
        (b"last".to_vec(), 0x1000, 3)
    );
}
